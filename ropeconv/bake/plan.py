"""Plan: everything that will be written, decided before anything is written; `apply` only executes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..encode import EncodeResult, Target
from ..encode.gguf import GgufResult
from ..errors import RopeconvError, UnsupportedBake
from ..inspection import Inspection
from ..receipts import Receipt
from ..receipts.original import OriginalRecord
from ..rope.bound import shortfall
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.compare import describe
from ..version import SCHEMA
from .planned import FilePlan
from .planned import PlannedFile as PlannedFile
from .record import receipt_of


@dataclass(frozen=True)
class Plan(FilePlan):
    """What `apply` will do, and what each runtime will compute from the output.

    source, out, files, skipped: as in `FilePlan`. target, recipe: what the plan was made from. family: of the model, or
    its GGUF architecture. before: the RoPE that the recipe starts from. schedule: what has to be computed. result: how
    that is encoded, with the verdicts. warnings: sentences for the user. original: for the receipt, as there.
    """

    target: Target
    recipe: Recipe
    family: str
    before: RopeSpec
    schedule: Schedule
    result: EncodeResult
    warnings: tuple[str, ...]
    original: OriginalRecord | None = field(default=None, kw_only=True)

    @property
    def identity(self) -> str:
        """The digest of the schedule."""
        return self.schedule.digest

    def receipt(self) -> Receipt:
        """The receipt of the output, without the files and the check, which are known after it is written."""
        return receipt_of(self.source, self.family, self.recipe, self.before, self.schedule, self.result, self.original)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data, as `--json` prints it; keys stay within a schema."""
        done = self.receipt().to_dict()
        for key in ("ropeconv", "files", "check", "validation", "servers", "original"):
            del done[key]
        return {
            **done,
            "schema": SCHEMA,
            "source": self.source.to_dict(),
            "out": str(self.out),
            "schedule": self.schedule.to_dict(),
            "considered": [entry.to_dict() for entry in self.result.considered],
            "files": [{"name": file.name, "action": file.action, "size": file.size} for file in self.files],
            "skipped": list(self.skipped),
            "bytes": self.bytes,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class GgufOutput(Plan):
    """A plan whose output is a GGUF file, or several shards beside each other."""

    result: GgufResult

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return False


def start_spec(seen: Inspection, recipe: Recipe, target: Target) -> RopeSpec:
    """The RoPE that a recipe starts from.

    seen: the inspection of the source. Raises RopeconvError for a scaled model without `target.replace`,
    UnsupportedBake for families for which nothing can be baked.
    """
    spec = seen.spec
    if seen.refuse:
        raise UnsupportedBake("a context extension", seen.display_name, seen.refuse, "or choose another model")
    if isinstance(recipe.method, AsIs):
        return spec
    if seen.extended and not target.replace:
        raise RopeconvError(
            f"{seen.source.reference} is scaled already ({describe(spec.form)}); pass --replace to start from its "
            "unscaled RoPE, or --as-is to keep the scaling it has"
        )
    return spec.unscaled() if target.replace and spec.scaled else spec


def warnings(seen: Inspection, recipe: Recipe, schedule: Schedule) -> list[str]:
    """The warnings of a plan, as sentences.

    seen: the inspection of the source. schedule: of the output.
    """
    found = [short] if (short := shortfall(schedule, seen.spec)) else []
    keep = {"trained", "window", "custom-code", "stale-inv-freq", "ignored-tensor"}
    found += [problem.message for problem in seen.problems if problem.code in keep]
    if schedule.context > schedule.original_context and not isinstance(recipe.method, AsIs):
        found.append("the scaling is static: prompts within the trained context see the changed frequencies too")
    if schedule.context == seen.spec.context and recipe.method.name == "theta" and recipe.context is None:
        found.append(f"the context stays {schedule.context}; pass --context to declare a longer one")
    if isinstance(recipe.method, AsIs):
        return found
    if seen.spec.scaled:
        found.append("the model was trained or tuned with the scaling that is being replaced")
    return found
