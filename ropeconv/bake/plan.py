"""Plan: everything that will be written, decided before anything is written; `apply` only executes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..encode import EncodeResult, Target
from ..encode.gguf import GgufResult
from ..inspection.kv_cache import KvCache
from ..receipts import Receipt
from ..receipts.original import OriginalRecord
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..version import SCHEMA
from .planned import FilePlan
from .planned import PlannedFile as PlannedFile
from .record import receipt_of


@dataclass(frozen=True)
class Plan(FilePlan):
    """What `apply` will do, and what each runtime will compute from the output.

    source, out, files, skipped: as in `FilePlan`. target, recipe: what the plan was made from. family: of the model, or
    its GGUF architecture. source_spec: the RoPE of the source as it is, and before: the one that the recipe starts
    from. schedule: what has to be computed. result: how that is encoded, with the verdicts. warnings: sentences for the
    user. notes: how numbers of the plan follow from each other. kv_cache: the key-value cache of the output, None
    where the source does not state the number of heads. original: for the receipt, as there.
    """

    target: Target
    recipe: Recipe
    family: str
    source_spec: RopeSpec
    before: RopeSpec
    schedule: Schedule
    result: EncodeResult
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    kv_cache: KvCache | None
    original: OriginalRecord | None = field(default=None, kw_only=True)

    @property
    def resume_key(self) -> str:
        """The digest of the schedule, the recipe and the target."""
        return f"{self.schedule.digest} {self.recipe} {self.target}"

    def receipt(self) -> Receipt:
        """The receipt of the output, without the files and the check, which are known after it is written."""
        return receipt_of(
            self.source, self.target, self.family, self.recipe, self.source_spec, self.schedule, self.result,
            self.original,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data, as `--json` prints it; keys stay within a schema."""
        done = self.receipt().to_dict()
        for key in ("ropeconv", "files", "check", "validation", "servers", "evaluations", "original", "target"):
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
            "kv_cache": self.kv_cache.to_dict(self.schedule.context, self.source_spec.context)
            if self.kv_cache
            else None,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class GgufOutput(Plan):
    """A plan whose output is a GGUF file, or several shards beside each other."""

    result: GgufResult

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return False
