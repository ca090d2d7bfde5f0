"""Plans, outputs and validations in one line each, for tests that are about something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ropeconv
from ropeconv.bake import FoldTarget, GgufTarget, Plan, Target
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import GgufSource, Source
from ropeconv.validate.rule.validation import Validation

Opened = Source | GgufSource


def target(
    out: Path | None = None,
    outtype: str | None = None,
    pre: str | None = None,
    carrier: str | None = None,
    fold_into: Any = None,
    fold_dtype: Any = None,
    quantized_by: str | None = None,
    **options: Any,
) -> Target:
    """A Target from the names of the flags."""
    written = GgufTarget(outtype, pre, carrier, quantized_by=quantized_by)
    return Target(out=out, gguf=written, fold=FoldTarget(fold_into, fold_dtype), **options)


def make_plan(source: Path | str | Opened, recipe: Recipe, out: Path | None = None, **options: Any) -> Plan:
    """A plan for a source, which may be a path. options: as in `target`."""
    opened = source if isinstance(source, Opened) else ropeconv.open_source(str(source))
    return ropeconv.make_plan(opened, recipe, target(out, **options))


def apply(plan: Plan, **options: Any) -> Path:
    """Writes a plan without asking transformers about it, which takes seconds."""
    return ropeconv.apply(plan, check=False, **options).path


def validate(baked: Path, against: Path | str, **settings: Any) -> Validation:
    """Compares a baked folder with its source."""
    comparison = ropeconv.Comparison.open(baked, str(against))
    return ropeconv.validate_checkpoint(comparison, ropeconv.Settings(**settings))
