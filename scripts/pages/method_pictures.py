"""Draws the frequencies of every method into docs/pictures/method-NAME.svg, for docs/methods.md.

    python -m scripts.pages method_pictures

Each picture has the wavelengths of the pairs and what their frequencies are divided by, as
`ropeconv plot` draws them, with the settings of EXAMPLES or at 8 times the context.
tests/docs/test_generated.py draws them again.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

import ropeconv
from ropeconv.rope.forms import base_inv_freq
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.views.plot_style import figure, svg
from ropeconv.views.schedule_plots import ramp, wavelengths

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
CONFIGS = ROOT / "tests" / "data" / "configs"
LLAMA = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
PHI = CONFIGS / "microsoft--Phi-3-mini-128k-instruct.json"
TURNING = 48
"""Pairs of the 64 that rotate in the picture of `--inv-freq`."""
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "theta": (500000.0,),
    "longrope": (),
    "piecewise": ("8@46",),
    "inv-freq": (),
    "dynamic": ("ntk:8", 16384),
}
"""Values of the methods in the pictures; the others reach 8 times the context of Llama 2.

longrope has the lists of Phi 3 mini 128k, inv-freq p-RoPE.
"""
DRAWN = tuple(name for name in REGISTRY if name != "as-is")


def spec_of(config: Path) -> RopeSpec:
    """The RoPE of a published config."""
    return ropeconv.inspect_source(ropeconv.open_source(str(config))).spec


def drawn(name: str) -> str:
    """The picture of a method as SVG. name: of the method."""
    spec = spec_of(PHI if name == "longrope" else LLAMA)
    before = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    values = EXAMPLES.get(name, ())
    if name == "inv-freq":
        values = (tuple(float(value) if at < TURNING else 0.0 for at, value in enumerate(before)),)
    if name == "longrope":
        schedule = Recipe(REGISTRY["as-is"]()).schedule(spec)
    else:
        method = (
            REGISTRY[name](*values)
            if values
            else REGISTRY[name].for_context(spec, 8 * spec.original_context)
        )
        if method is None:
            raise LookupError(
                f"--{name} does not say how it reaches a length; give it values in EXAMPLES"
            )
        schedule = Recipe(method).schedule(spec)
    curves = {f"--{name}": schedule.inv_freq}
    if schedule.short_inv_freq is not None:
        curves = {"long list": schedule.inv_freq, "short list": schedule.short_inv_freq}
    lengths = {"trained": spec.original_context}
    if schedule.context > spec.original_context:
        lengths["new"] = schedule.context
    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        panels = (
            partial(wavelengths, before=before, curves=curves, lengths=lengths),
            partial(ramp, before=before, curves=curves),
        )
        return (
            svg(figure(*panels)).replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
            + "\n"
        )


def main() -> None:
    """Writes every picture, or with `--missing` those that are not there."""
    for name in DRAWN:
        path = PICTURES / f"method-{name}.svg"
        if sys.argv[1:] != ["--missing"] or not path.exists():
            path.write_text(drawn(name), encoding="utf-8")


if __name__ == "__main__":
    main()
