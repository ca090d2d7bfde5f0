"""Plan: everything that will be written, decided before anything is. Pure; `apply` only executes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..encode import EncodeResult, Target
from ..encode.gguf import GgufResult
from ..errors import RopeconvError, UnsupportedBake
from ..inspection import Inspection
from ..receipts import Receipt
from ..receipts.receipt import Action
from ..rope.bound import shortfall
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.verdict import describe
from ..sources import Origin
from ..version import SCHEMA
from .record import receipt_of


@dataclass(frozen=True)
class PlannedFile:
    """One file of the output.

    action: "copy" takes it from the source, unchanged; the others are `text`, or made by make(target, advance). size:
    in bytes. sha256: where it is known for free. origin: its name in the source, where that is another.
    """

    action: Action
    name: str
    size: int
    sha256: str | None = None
    text: str | None = None
    make: Callable[[Path, Callable[[int], None]], None] | None = None
    origin: str = ""


@dataclass(frozen=True)
class Plan:
    """What `apply` will do, and what each runtime will compute then.

    out: a folder, or a GGUF file (the first shard, when there are several). family: of the model, or its GGUF
    architecture. before: its RoPE as the recipe finds it. schedule: what has to be computed. result: how that is
    encoded. skipped: files that are left where they are.
    """

    source: Origin
    target: Target
    out: Path
    recipe: Recipe
    family: str
    before: RopeSpec
    schedule: Schedule
    result: EncodeResult
    files: tuple[PlannedFile, ...]
    skipped: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return True

    @property
    def bytes(self) -> int:
        """Size of the output."""
        return sum(file.size for file in self.files)

    def origin(self, file: PlannedFile) -> Path | None:
        """The local path that a file is copied from; None where it is not copied."""
        return None

    def receipt(self) -> Receipt:
        """What will have been done, without the files' hashes and the check of the result."""
        return receipt_of(self.source, self.family, self.recipe, self.before, self.schedule, self.result)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, stable: what `--json` prints."""
        done = self.receipt().to_dict()
        for key in ("ropeconv", "files", "check", "validation", "servers"):
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
    """The RoPE that a recipe starts from. Raises RopeconvError for a scaled model without `target.replace`."""
    spec = seen.spec
    if seen.refuse:
        raise UnsupportedBake("a context extension", seen.display_name, seen.refuse, "or choose another model")
    if isinstance(recipe.method, AsIs):
        return spec
    if spec.scaled and not target.replace:
        raise RopeconvError(
            f"{seen.source.reference} is scaled already ({describe(spec.form)}); pass --replace to start from its "
            "unscaled RoPE, or --as-is to keep the scaling it has"
        )
    return spec.unscaled() if target.replace and spec.scaled else spec


def warnings(seen: Inspection, recipe: Recipe, schedule: Schedule) -> list[str]:
    """What people should know before they use the output."""
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
