"""Plan: everything that will be written, decided before anything is written; `apply` only executes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..encode import EncodeResult, Target
from ..encode.gguf import GgufResult
from ..inspection.kv_cache import KvCache
from ..receipts import Receipt
from ..receipts.receipt import Action
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..sources import Origin
from ..version import SCHEMA
from .record import receipt_of


@dataclass(frozen=True)
class PlannedFile:
    """One file of the output.

    action: "copy" takes it from the source, unchanged; other files are written from `text` or by make(target, advance).
    name: relative to the output. size: in bytes. sha256: None where it is not known without hashing. text: its content.
    origin: its name in the source, empty where that is the same.
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
    """What `apply` will do, and what each runtime will compute from the output.

    source, target, recipe: what the plan was made from. out: a folder, or a GGUF file (of several shards the first).
    family: of the model, or its GGUF architecture. source_spec: the RoPE of the source as it is, and before: the
    one that the recipe starts from. schedule: what has to be computed. result: how that is encoded, with the
    verdicts. files: to write. skipped: names of files of the source that are left out. warnings: sentences for the
    user. notes: how numbers of the plan follow from each other. kv_cache: the key-value cache of the output, None
    where the source does not state the number of heads.
    """

    source: Origin
    target: Target
    out: Path
    recipe: Recipe
    family: str
    source_spec: RopeSpec
    before: RopeSpec
    schedule: Schedule
    result: EncodeResult
    files: tuple[PlannedFile, ...]
    skipped: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    kv_cache: KvCache | None

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return True

    @property
    def bytes(self) -> int:
        """Size of all files of the output in bytes."""
        return sum(file.size for file in self.files)

    def origin(self, file: PlannedFile) -> Path | None:
        """The local path of the file that a planned file is copied from; None where it is not copied."""
        return None

    def receipt(self) -> Receipt:
        """The receipt of the output, without the files and the check, which are known after it is written."""
        return receipt_of(self.source, self.family, self.recipe, self.before, self.schedule, self.result)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data, as `--json` prints it; keys stay within a schema."""
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
