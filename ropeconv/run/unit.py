"""Unit: one task for a source, with recipes and a target; Job: units that one worker runs one after the other."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ..bake import Plan, make_plan
from ..evaluate.row import Row
from ..rope.recipe import Recipe
from ..sources import open_source
from ..version import __version__
from .plan_file import TargetTable


class NamedRecipe(msgspec.Struct, frozen=True):
    """A row of a plan.

    name: as it is written there. recipe: as `Recipe.to_dict` has it; None for the model as it is.
    """

    name: str
    recipe: dict[str, Any] | None

    def row(self) -> Row:
        """The row of an evaluation."""
        return Row(self.name, None if self.recipe is None else Recipe.from_dict(self.recipe))


class Unit(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One task, with everything that decides its result.

    task: its name. source: reference, with the commit. name, identity: of the source, as in `Named`. family: that it
    is treated as, or empty. recipes: one, or for eval all rows. target: of the output; None for eval. out: the output,
    or for eval the file of the result. settings: of the task.
    """

    task: str
    source: str
    name: str
    identity: str
    recipes: tuple[NamedRecipe, ...]
    out: str
    target: TargetTable | None = None
    family: str = ""
    settings: dict[str, Any] = {}

    @cached_property
    def key(self) -> str:
        """sha256 over all fields and the version of ropeconv."""
        return hashlib.sha256(msgspec.json.encode([__version__, self], order="deterministic")).hexdigest()

    @property
    def label(self) -> str:
        """What it is about, for messages."""
        recipe = self.recipes[0].name if self.target is not None else ""
        target = self.target.name if self.target is not None else ""
        return " ".join(filter(None, (self.task, self.name, recipe, target)))

    def plan(self, out: Path | None = None) -> Plan:
        """The plan of its output. out: another place for it. Raises what `open_source` and `make_plan` raise."""
        assert self.target is not None
        recipe = self.recipes[0].row().recipe
        assert recipe is not None
        return make_plan(open_source(self.source, self.family), recipe, self.target.target(out or Path(self.out)))


class Job(msgspec.Struct, frozen=True):
    """Units that run one after the other in one worker, each with what the one before it left."""

    units: tuple[Unit, ...]
