"""make_plan: from a source, a recipe and a target to the plan for the format of the output."""

from __future__ import annotations

from ..encode import Target
from ..errors import RopeconvError
from ..export.checkpoint import GgufCheckpoint
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..runtimes.llamacpp import assumed_keys
from ..sources import GgufSource, Source
from .checkpoint import checkpoint_plan
from .export import export_plan
from .gguf import gguf_plan
from .plan import Plan


def make_plan(source: Source | GgufSource, recipe: Recipe, target: Target | None = None) -> Plan:
    """Plans an output: its schedule, encoding, verdicts and files. Writes nothing.

    source: from `open_source`. recipe: the method and its modifiers. target: format, encoding and runtimes; by default
    the format of the source, for transformers (or llama.cpp). Raises UsageError for options that do not go together,
    BadSource for a damaged source, UnsupportedBake for a schedule that the target cannot express, RopeconvError for a
    model that is scaled already without `target.replace`.
    """
    target = target or Target()
    target.check(recipe, from_gguf=source.kind == "gguf")
    if isinstance(source, GgufSource) and target.to == "safetensors":
        source = _as_checkpoint(source, recipe, target)
    if isinstance(source, GgufSource):
        with assumed_keys(target.gguf.assume_arch_keys):
            return gguf_plan(source, recipe, target)
    if target.to == "gguf":
        return export_plan(source, recipe, target)
    return checkpoint_plan(source, recipe, target)


def _as_checkpoint(source: GgufSource, recipe: Recipe, target: Target) -> GgufCheckpoint:
    """A GGUF file as a checkpoint. Raises RopeconvError for one that ropeconv has extended, unless it stays so."""
    found = GgufCheckpoint(source, target.gguf.outtype or "auto")
    seen = found.inspection
    if seen.first is not None and seen.extended and not isinstance(recipe.method, AsIs):
        raise RopeconvError(
            f"{source.reference} was extended by ropeconv already, and a checkpoint would not say from what; run "
            "`ropeconv restore` on it first, or pass --as-is to keep the RoPE it has"
        )
    return found
