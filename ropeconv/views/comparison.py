"""Shows the RoPE of two models side by side."""

from __future__ import annotations

from ..errors import counted
from ..inspection.frequencies import FrequencyDifference
from ..inspection.side_by_side import RopeDifference, Side
from ..runtimes.compare import describe
from .legends import statuses
from .sheet import Sheet


def show_comparison(found: RopeDifference, sheet: Sheet) -> None:
    """Shows a comparison: a row per property, the frequencies, and every runtime."""
    sides = (found.first, found.second)
    for name, side in zip("AB", sides, strict=True):
        sheet.copyable(f"{name}: {side.seen.source.reference}")
    sheet.say("")
    cells = [_cells(side) for side in sides]
    rows = [
        (name, a, b, "differs" if key in found.differs else "")
        for (key, name), a, b in zip(ROWS.items(), *cells, strict=True)
        if a or b
    ]
    sheet.table("", ("", "A", "B", ""), rows)
    named = {
        "Frequencies": found.frequencies,
        "Frequencies within the trained context": found.short_frequencies,
        "Frequencies of window layers": found.window_frequencies,
    }
    for title, vector in named.items():
        if vector is not None:
            sheet.say(f"{title}: {_vector(vector)}")
    if found.frequencies is None:
        pairs = [side.spec.rotary_dim // 2 for side in sides]
        sheet.say(f"Frequencies: not compared, A rotates {counted(pairs[0], 'pair')} and B {pairs[1]}.")
    sheet.say("")
    table = [(pair.display_name, *(status or "-" for status in pair.statuses)) for pair in found.runtimes]
    sheet.table("Runtime support", ("newest version", "A", "B"), table)
    sheet.say(f"{statuses((status, '') for pair in found.runtimes for status in pair.statuses if status)}\n")
    for remark in found.remarks:
        sheet.say(remark)
    sheet.say(found.sentence)


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
