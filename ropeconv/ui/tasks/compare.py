"""The methods that reach a length, side by side."""

from __future__ import annotations

from pathlib import Path

from ...encode.target import Format
from ...errors import RecipeError, UsageError
from ...evaluate.advised import advised
from ...inspection import inspect_source
from ...pictures.of_model import pictures_of
from ...rope.lengths import factor_over, parse_factor, parse_tokens
from ...sources import GgufSource, Source
from ...views.advice import show_advice, show_methods
from ..desk import Desk
from ..forms import CompareForm
from ..links import to_bake
from ..opening import opened
from ..sheet import HtmlSheet

MOST_SHARDS = 64
"""Files of weights whose headers are read, as a conversion needs them."""
DRAWN = 5
"""Methods that are drawn, the first of the table."""


def compare(form: CompareForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Shows the methods as `ropeconv advise` does, and draws the first of them."""
    source = opened(form, desk.rules)
    measured = Path(form.measured) if form.measured else None
    large = isinstance(source, Source) and len(source.weights()) > MOST_SHARDS
    outputs: tuple[Format, ...] | None = ("safetensors",) if large else None
    found = advised(source, _length(form.context, source), measured, outputs)
    show_advice(found, sheet)
    if large:
        sheet.note(f"GGUF is not planned here for more than {MOST_SHARDS} files of weights; `ropeconv advise` does it.")
    if found.found:
        if form.source:
            ways = [
                (one.method.command, to_bake(form.source, one.method, one.context, one.replace)) for one in found.found
            ]
            sheet.ways("Plan one of them", ways)
        curves = {one.method.name: one.schedule.inv_freq for one in found.found[:DRAWN]}
        sheet.title("The first of them" if len(found.found) > DRAWN else "Their frequencies")
        sheet.pictures(pictures_of(found.seen.first_spec, curves, found.context))
        sheet.title("Each of them")
    show_methods(found, sheet)


def _length(text: str, source: Source | GgufSource) -> int:
    """A length in tokens, or the trained one times a factor: 128k, 131072 or 4."""
    if not text:
        raise UsageError("no length is given; write one such as 128k, or a factor such as 4")
    try:
        factor = parse_factor(text, "the length")
    except RecipeError:
        return parse_tokens(text)
    if isinstance(factor, str):
        return parse_tokens(factor)
    trained = inspect_source(source).first_spec.original_context
    return round(trained * factor_over(factor, trained, "the length"))
