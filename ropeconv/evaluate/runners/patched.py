"""Patched: one loaded checkpoint in transformers, whose rotary modules are patched for each row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...engines import Engine
from ...engines.transformers import DeviceSpec, TransformersEngine
from ...errors import UsageError
from ...inspection import Inspection
from ...rope.schedule import Schedule
from ...sources import Source
from ..row import Row
from ..texts.of_checkpoint import CheckpointTokenizer
from .runner import Runner


class Patched(Runner):
    """Rows with a recipe, on one load of the source in the installed transformers; another row takes milliseconds."""

    swaps = True

    def __init__(self, source: Source, folder: Path, seen: Inspection, at: DeviceSpec, chunk: int = 4096) -> None:
        self.source = identity(folder)
        self.inspection, self.family, self.at = seen, source.family, at
        self.trained = seen.spec.unscaled().original_context
        self.tokenizer = CheckpointTokenizer(folder)
        self.loaded = TransformersEngine.load(folder, at, chunk=chunk)
        self.runtime, self.device, self.dtype = self.loaded.runtime, at.device_map or at.device, at.dtype

    def schedule(self, row: Row) -> Schedule:
        if row.path is not None or row.url:
            raise UsageError(f"{row.name} is no method on the source; evaluate it by itself")
        if row.recipe is None:
            return self.inspection.spec.current()
        basis = self.inspection.basis(row.recipe)
        return row.recipe.schedule(row.recipe.start(basis), basis)

    def digest(self, row: Row) -> str:
        return self.schedule(row).digest

    @contextmanager
    def engine(self, row: Row) -> Iterator[Engine]:
        schedule = self.schedule(row)
        if row.recipe is None:
            yield self.loaded
            return
        weights = self.family.weights
        queries = (weights.q_norm or weights.q) if schedule.log_n else ""
        undo = self.loaded.patch(schedule, self.inspection.spec, schedule.log_n, queries)
        try:
            yield self.loaded
        finally:
            undo()


def identity(folder: Path) -> str:
    """What tells a checkpoint from another: sha256 over its config, and names, sizes and times of its weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        found = path.stat()
        digest.update(f"{path.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
