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
from ropeconv.rope.forms import Vector, base_inv_freq
from ropeconv.rope.methods.method import REGISTRY, Method
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.views.plot_style import figure, svg
from ropeconv.views.schedule_plots import draw_frequency_divisors, wavelengths

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
    """Return the picture of a method as SVG: its wavelengths, and its divisors per pair.

    Args:
        name: The name of the method, such as "yarn".
    """
    spec = spec_of(PHI if name == "longrope" else LLAMA)
    before = base_inv_freq(spec.rope_theta, spec.rotary_dim)
    schedule = Recipe(_drawn_method(name, spec, before)).schedule(spec)

    curves = {f"--{name}": schedule.inv_freq}
    if schedule.short_inv_freq is not None:
        curves = {"long list": schedule.inv_freq, "short list": schedule.short_inv_freq}
    lengths = {"trained": spec.original_context}
    if schedule.context > spec.original_context:
        lengths["new"] = schedule.context
    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        left = partial(wavelengths, before=before, curves=curves, lengths=lengths)
        right = partial(draw_frequency_divisors, before=before, curves=curves)
        picture = svg(figure(left, right))
    return picture.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif") + "\n"


def _drawn_method(name: str, spec: RopeSpec, before: Vector) -> Method:
    """Return the method that a picture shows, with values from EXAMPLES or for 8 times the context.

    Args:
        name: The name of the method.
        spec: The RoPE of the model.
        before: Its frequencies.

    Raises:
        LookupError: The method does not say how it reaches a length, and has no example.
    """
    if name == "longrope":  # the model has LongRoPE's lists already
        return REGISTRY["as-is"]()
    if name == "inv-freq":
        # the first TURNING pairs rotate as before, and the others not at all
        kept = [float(value) if pair < TURNING else 0.0 for pair, value in enumerate(before)]
        return REGISTRY[name](tuple(kept))
    if EXAMPLES.get(name):
        return REGISTRY[name](*EXAMPLES[name])
    method = REGISTRY[name].for_context(spec, 8 * spec.original_context)
    if method is None:
        raise LookupError(
            f"--{name} does not say how it reaches a length; give it values in EXAMPLES"
        )
    return method


def main() -> None:
    """Writes every picture, or with `--missing` those that are not there."""
    for name in DRAWN:
        path = PICTURES / f"method-{name}.svg"
        if sys.argv[1:] != ["--missing"] or not path.exists():
            path.write_text(drawn(name), encoding="utf-8")


if __name__ == "__main__":
    main()
