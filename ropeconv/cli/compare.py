"""`ropeconv compare`: the RoPE of two checkpoints side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import counted
from .legends import statuses
from .options import FamilyOption, JsonOption
from .output import Output

if TYPE_CHECKING:
    from ..inspection.frequencies import FrequencyDifference
    from ..inspection.side_by_side import RopeDifference, Side
    from ..sources import GgufSource, Source

EXAMPLES = """Examples:

ropeconv compare Qwen/Qwen3-8B ./Qwen3-8B-yarn4

ropeconv compare ./Qwen3-8B-yarn4 model-Q4_K_M.gguf

ropeconv compare a/config.json b/config.json --exit-code
"""
MODEL = "A folder, a GGUF file, a config.json, or owner/name@revision (or owner/name/file.gguf) on the Hub."


def compare_command(
    first: Annotated[str, typer.Argument(metavar="A", help=MODEL)],
    second: Annotated[str, typer.Argument(metavar="B", help="The same, in any format.")],
    family: FamilyOption = "",
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 3 where they differ.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the RoPE of two checkpoints side by side: what differs and by how much, and each in every runtime."""
    from ..inspection import inspect_source
    from ..inspection.side_by_side import side_by_side

    found = side_by_side(*(inspect_source(_opened(reference, family)) for reference in (first, second)))
    output = Output(as_json)
    for side in (found.first, found.second):
        output.note(side.seen.assumption)
    if as_json:
        output.data(found.to_dict())
    else:
        _show(found, output)
    if exit_code and not found.same:
        raise typer.Exit(3)


def _opened(reference: str, family: str) -> Source | GgufSource:
    """The source of a reference, of a family that the user says it is of unless it is GGUF."""
    from ..sources import open_source

    return open_source(reference, "" if reference.endswith(".gguf") else family)


def _show(found: RopeDifference, output: Output) -> None:
    sides = (found.first, found.second)
    for name, side in zip("AB", sides, strict=True):
        output.copyable(f"{name}: {side.seen.source.reference}")
    output.say("")
    cells = [_cells(side) for side in sides]
    rows = [
        (name, a, b, "differs" if key in found.differs else "")
        for (key, name), a, b in zip(ROWS.items(), *cells, strict=True)
        if a or b
    ]
    output.table("", ("", "A", "B", ""), rows)
    named = {
        "Frequencies": found.frequencies,
        "Frequencies within the trained context": found.short_frequencies,
        "Frequencies of window layers": found.window_frequencies,
    }
    for title, vector in named.items():
        if vector is not None:
            output.say(f"{title}: {_vector(vector)}")
    if found.frequencies is None:
        pairs = [side.spec.rotary_dim // 2 for side in sides]
        output.say(f"Frequencies: not compared, A rotates {counted(pairs[0], 'pair')} and B {pairs[1]}.")
    output.say("")
    table = [(pair.display_name, *(status or "-" for status in pair.statuses)) for pair in found.runtimes]
    output.table("Runtime support", ("newest version", "A", "B"), table)
    output.say(f"{statuses((status, '') for pair in found.runtimes for status in pair.statuses if status)}\n")
    for remark in found.remarks:
        output.say(remark)
    output.say(found.sentence)


ROWS = {
    "family": "family",
    "frequencies": "frequencies",
    "attention_factor": "attention factor",
    "softmax_scale": "softmax scale",
    "query_scaling": "query scaling",
    "context": "context",
    "original_context": "trained for",
    "layers": "layers",
    "window_frequencies": "window layers",
    "window_attention_factor": "their attention factor",
    "rotary_dim": "rotary_dim",
    "mla": "attention",
    "layout": "pairs",
}
"""Titles of the rows, by the name of what they show."""


def _cells(side: Side) -> tuple[str, ...]:
    """The cells of a model, in the order of ROWS; empty where there is nothing to say."""
    from ..runtimes.compare import describe

    spec, scaling = side.spec, side.spec.query_scaling
    kinds = {
        "global": ("rotates", "rotate"),
        "local": ("rotates in a window", "rotate in a window"),
        "none": ("does not rotate", "do not rotate"),
    }
    layers = [counted(spec.layers.count(kind), *words) for kind, words in kinds.items() if kind in spec.layers]
    return (
        side.seen.name,
        describe(spec.form),
        f"{spec.attention_factor:.6g}{' (partly in the weights)' if side.folded else ''}",
        f"{spec.softmax_scale:.6g}" if spec.softmax_scale != 1 else "",
        f"{scaling.gain:.6g} (1 + {scaling.beta:.6g} ln(1 + floor(p / {scaling.length:,})))" if scaling else "",
        f"{spec.context:,}",
        f"{spec.original_context:,}",
        "; ".join(layers),
        describe(spec.local_form) if spec.local_form else "",
        f"{side.window_attention_factor:.6g}" if side.window_attention_factor != 1 else "",
        f"{spec.rotary_dim} of head_dim {spec.head_dim}",
        "multi-head latent" if spec.mla else "",
        "rotate_half" if spec.layout == "half" else "interleaved",
    )


def _vector(found: FrequencyDifference) -> str:
    """A sentence on two vectors of frequencies."""
    if found.same:
        return f"all {found.pairs} pairs agree (within {found.max_ulp} ulp of float32)."
    ratio = "one of them 0" if found.largest_ratio is None else f"the largest ratio is {found.largest_ratio:.6g}"
    values = f"A {found.first:.6e}, B {found.second:.6e}"
    differ = f"{found.differing} of {found.pairs} pairs {'differs' if found.differing == 1 else 'differ'}"
    return f"{differ}; {ratio}, at pair {found.largest_ratio_at} ({values})."
