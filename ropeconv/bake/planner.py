"""Plans: from a source, a recipe and a target to everything that will be written."""

from __future__ import annotations

from ..encode import Target
from ..rope.recipe import Recipe
from ..sources import GgufSource, Source
from .checkpoint import checkpoint_plan
from .export import export_plan
from .gguf import gguf_plan
from .plan import Plan


def make_plan(source: Source | GgufSource, recipe: Recipe, target: Target | None = None) -> Plan:
    """Decides everything: schedule, encoding, verdicts, files. Writes nothing.

    source: what `open_source` gives. recipe: the method and its modifiers. target: how and for whom; by default as the
    source is, for transformers (or llama.cpp). Raises UsageError for options that do not go together, BadSource for a
    damaged source, UnsupportedBake for what the target cannot express, RopeconvError for a model that is scaled already
    without `target.replace`.
    """
    target = target or Target()
    target.check(recipe, from_gguf=isinstance(source, GgufSource))
    if isinstance(source, GgufSource):
        return gguf_plan(source, recipe, target)
    if target.to == "gguf":
        return export_plan(source, recipe, target)
    return checkpoint_plan(source, recipe, target)
