"""Writes the files of a plan into the hidden folder, and goes on from those that an interrupted run has finished."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

from ...errors import BadSource, Interrupted
from ...formats.disk import (
    Advance,
    FileIdentity,
    copy_file,
    identity,
    link_file,
    sampled,
    sha256,
    sync_file,
    writing_back,
)
from ...inspection.receipts.receipt import FileRecord
from ...rope.errors import RopeconvError
from ..plan import FilePlan, PlannedFile
from .hidden import FinishedFile, OutputJournal
from .place import ApplyOptions

COPIED, COPIES = ("copy", "patch"), 2
GRACE = 5.0
"""Seconds that files in progress have to stop, where a run is stopped."""


@dataclass
class Writer:
    """Writes the files of a plan.

    plan: what to write. root: where. drafts: the folder of files that are not complete yet, since a source may have any
    name. journal: of the hidden folder. options: how. advance: called with the bytes done since the last call. seen:
    files of the source that are read, as they were before.
    """

    plan: FilePlan
    root: Path
    drafts: Path
    journal: OutputJournal
    options: ApplyOptions
    advance: Advance
    seen: dict[Path, FileIdentity | None] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _stopping: Event = field(default_factory=Event)

    def resume(self) -> list[PlannedFile]:
        """Removes everything but finished files that are as they were left, and returns the other files of the plan."""
        self.root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.drafts, ignore_errors=True)
        self.drafts.mkdir(exist_ok=True)
        pending = [file for file in self.plan.files if not self._is_finished(file)]
        kept = {file.name: file.size for file in self.plan.files if file not in pending}
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder, name) for name in names):
                if path.relative_to(self.root).as_posix() not in kept:
                    path.unlink()
        if kept:
            self.advance(sum(kept.values()))
        return pending

    def write(self, pending: Iterable[PlannedFile]) -> None:
        """Writes files, copies two at a time, since one does not use the whole bandwidth of a disk.

        Raises OSError, and BadSource where the source is not as it was planned.
        """
        for file in pending:
            if file.action not in COPIED:
                self._write(file)
        pool = ThreadPoolExecutor(COPIES)
        running: list[Future[None]] = []
        try:
            running += [pool.submit(self._write, file) for file in pending if file.action in COPIED]
            for future in as_completed(running):
                future.result()
        except BaseException:
            self._stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            wait(running, GRACE)  # a download that hangs is not waited for: it touches nothing here any more
            raise
        pool.shutdown()

    def record(self, file: PlannedFile) -> FileRecord:
        """The record of a file for the receipt, with the size and sha256 that it was found to have.

        Of copies it has the sha256 with `checksum` or where the source lists it: hashing 100 GB that the kernel has
        just copied would take longer than copying them. Files that are not staged are as they were planned.
        """
        done = self.journal.finished.get(file.name)
        size = file.size if done is None else done.identity.size
        digest = file.sha256 if done is None else done.sha256 or file.sha256
        return FileRecord(file.name, file.action, size, digest, file.origin or None)

    def _is_finished(self, file: PlannedFile) -> bool:
        path, done = self.root / file.name, self.journal.finished.get(file.name)
        if done is None or identity(path) != done.identity or not _right_size(file, done.identity.size):
            return False
        local = file.action == "copy" and self.plan.source.kind != "hub"
        origin = self.plan.origin(file) if local else None
        sample = sampled(path)
        return sample == done.sample and (origin is None or sample == sampled(origin))

    def _write(self, file: PlannedFile) -> None:
        target = self.root / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = self.drafts / f"{self.plan.files.index(file)}{target.suffix}"
        with writing_back(draft) if self.options.fsync else nullcontext():
            self._fill(file, draft)
            found = self._checked(file, draft)
            if self.options.fsync:
                sync_file(draft)
        draft.replace(target)
        after = identity(target)
        assert after is not None, target
        with self._lock:
            self.journal.add(FinishedFile(file.name, after, found[0], found[1]))

    def _fill(self, file: PlannedFile, draft: Path) -> None:
        origin = self.plan.origin(file)
        if origin is not None:
            self.seen.setdefault(origin, identity(origin))
        self._go_on()
        if file.make is not None:
            file.make(draft, self._done)
        elif file.text is not None:
            draft.write_bytes(file.text.encode())
            self._done(file.size)
        elif origin is None:
            raise RopeconvError(f"{file.name} is planned without a content; report it")
        elif self.options.link and link_file(origin, draft):
            self._done(file.size)
        else:
            copy_file(origin, draft, self._done)

    def _done(self, done: int) -> None:
        """Counts bytes. Raises as `_go_on` does."""
        self._go_on()
        self.advance(done)

    def _go_on(self) -> None:
        """Raises Interrupted where the run is stopped, so that its threads end too."""
        if self._stopping.is_set():
            raise Interrupted("stopped with the run")

    def _checked(self, file: PlannedFile, draft: Path) -> tuple[str, str | None]:
        """The sample and the sha256 of a file that is as planned; the latter None where it is not read as a whole."""
        size, sample = draft.stat().st_size, sampled(draft)
        origin = self.plan.origin(file) if file.action == "copy" else None
        if not _right_size(file, size) or (origin is not None and sample != sampled(origin)):
            raise BadSource(f"{file.name} changed while it was copied; leave the source unchanged and run again")
        if file.action in COPIED and not self.options.checksum:
            return sample, None
        known = file.sha256 if file.text is None else hashlib.sha256(file.text.encode()).hexdigest()
        digest = sha256(draft)
        if known is not None and digest != known:
            raise BadSource(f"{file.name} has another content than was planned; check the disk and the source")
        return sample, digest


def _right_size(file: PlannedFile, size: int) -> bool:
    """Whether a file has its planned size. A size of 0 stands for one that the Hub does not tell."""
    return file.estimated or size == file.size or (file.size == 0 and file.text is None)
