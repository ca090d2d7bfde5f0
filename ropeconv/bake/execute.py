"""Executes a plan: files are written into a hidden folder, checked, and then moved to their final names."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ..errors import BadSource, RopeconvError
from ..formats.copying import Advance, copy_file, free_bytes, human, link_file, same_blocks
from ..formats.digest import sha256
from ..formats.gguf import read_header
from ..receipts import write_receipt
from ..receipts.receipt import CheckRecord, FileRecord
from ..sources import RECEIPT
from .planned import FilePlan, PlannedFile

COPIED, COPIES = ("copy", "patch"), 2
MARGIN = 16 * 1024 * 1024
STAMP = ".ropeconv-plan"

Verify = Callable[[Path], CheckRecord | None]


@dataclass(frozen=True)
class ApplyOptions:
    """How a plan is executed.

    link: hard-link unchanged files. force: replace an earlier output. checksum: hash copied weights as well, for the
    receipt. staged: leave out files that are copied unchanged, for a caller that takes them from the source.
    """

    link: bool = False
    force: bool = False
    checksum: bool = False
    staged: bool = False


def execute_plan(
    plan: FilePlan,
    options: ApplyOptions,
    verify: Verify = lambda folder: None,
    advance: Advance = lambda done: None,
) -> Path:
    """Writes the output and returns its path: a folder, or a GGUF file (of several shards the first).

    plan: what to write. options: how. verify: called with the folder of the finished files before they are moved to
    their final names; it returns the check for the receipt, or raises to stop. advance: called with the bytes done
    since the last call.

    Raises RopeconvError for an occupied or missing place, a full disk and a source that changes meanwhile; nothing is
    left behind then. An interrupted run leaves its finished files in a hidden folder, from which the same command
    continues.
    """
    _refuse_place(plan, options.force)
    partial = plan.out.parent / f".{plan.out.name}.ropeconv-partial"
    whole = plan
    if options.staged:
        plan = replace(whole, files=tuple(file for file in whole.files if file.action != "copy"))
    try:
        _resume_or_clear(partial, _stamp(plan, options.link))
        _need_space(plan, partial, options.link)
        _write_files(plan, partial, options.link, advance)
        check = verify(partial)
        if plan.is_folder:
            files = tuple(_record(file, partial / file.name, options.checksum) for file in whole.files)
            receipt = whole.receipt()
            if receipt is not None:
                write_receipt(partial, msgspec.structs.replace(receipt, files=files, check=check))
        (partial / STAMP).unlink()
    except OSError as problem:
        shutil.rmtree(partial, ignore_errors=True)
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RopeconvError(
                f"the disk is full; {human(plan.bytes)} are needed at {plan.out.parent}, free some or use -o"
            ) from None
        raise
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if plan.is_folder:
        _take_name(partial, plan.out)
    else:
        _take_names(partial, plan)
    return plan.out


def _record(file: PlannedFile, path: Path, checksum: bool) -> FileRecord:
    """The record of a file for the receipt.

    It has the sha256 of files that were written, and of copies with `checksum` or where the source lists it: hashing
    100 GB that the kernel has just copied would take longer than copying them.
    """
    if not path.exists():  # left where it is, for the Hub to copy
        return FileRecord(file.name, file.action, file.size, file.sha256, file.origin or None)
    digest = file.sha256 if file.action in COPIED and not checksum else sha256(path)
    return FileRecord(file.name, file.action, path.stat().st_size, digest, file.origin or None)


def _refuse_place(plan: FilePlan, force: bool) -> None:
    out = plan.out
    here = Path(plan.source.reference).resolve()
    if here.exists() and plan.source.kind != "hub":
        within = plan.is_folder and (here in out.resolve().parents or out.resolve() in here.parents)
        if out.resolve() == here or within:
            raise RopeconvError(f"{out} and the source lie within each other; choose another place with -o")
    places = [out] if plan.is_folder else [out.parent / file.name for file in plan.files]
    for place in places:
        occupied = place.exists() and (not place.is_dir() or any(place.iterdir()))
        if occupied and not force:
            raise RopeconvError(f"{place} exists; choose another place with -o, or replace it with --force")
        if occupied and not _ours(place, out):
            raise RopeconvError(
                f"{place} exists and is not an output of ropeconv, so --force will not replace it; remove it"
            )
    if not out.parent.is_dir():
        raise RopeconvError(f"{out.parent} does not exist; create it, or choose another place with -o")


def _ours(place: Path, out: Path) -> bool:
    """Whether a place is an output of ropeconv, by the receipt in the folder or among the keys of the GGUF file."""
    if place.is_dir() or out.suffix != ".gguf":
        return (place / RECEIPT).is_file()
    try:
        return RECEIPT in read_header(out if out.exists() else place).values
    except BadSource:
        return False


def _stamp(plan: FilePlan, link: bool) -> str:
    files = [(file.action, file.name, file.size, file.text) for file in plan.files]
    origins = [] if plan.source.kind == "hub" else [plan.origin(file) for file in plan.files]
    mtimes = [origin.stat().st_mtime_ns for origin in origins if origin is not None]
    identity = [plan.source.reference, plan.source.commit, plan.identity, link, files, mtimes]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _resume_or_clear(partial: Path, stamp: str) -> None:
    mark = partial / STAMP
    if mark.is_file() and mark.read_text("utf-8") == stamp:
        return
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    mark.write_text(stamp, "utf-8")


def _need_space(plan: FilePlan, partial: Path, link: bool) -> None:
    pending = [file for file in plan.files if not (partial / file.name).exists()]
    local = None if plan.source.kind == "hub" else next(filter(None, map(plan.origin, plan.files)), None)
    shared = link or same_blocks(local, partial)
    needed = sum(file.size for file in pending if not (shared and file.action == "copy")) + MARGIN
    free = free_bytes(partial)
    if needed > free:
        raise RopeconvError(
            f"{plan.out.parent} has {human(free)} free and the output needs {human(needed)}; "
            "free some, use -o, or share unchanged files with --link"
        )


def _write_files(plan: FilePlan, partial: Path, link: bool, advance: Advance) -> None:
    """Writes all files of a plan, copies two at a time, since one does not use the full bandwidth of a disk."""
    copied = [file for file in plan.files if file.action in COPIED]
    for file in plan.files:
        if file.action not in COPIED:
            _write_file(plan, file, partial / file.name, link, advance)
    pool = ThreadPoolExecutor(COPIES)
    try:
        running = [pool.submit(_write_file, plan, file, partial / file.name, link, advance) for file in copied]
        for future in as_completed(running):
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _write_file(plan: FilePlan, file: PlannedFile, target: Path, link: bool, advance: Advance) -> None:
    if target.exists():
        advance(file.size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(target.name + ".part")
    draft.unlink(missing_ok=True)
    if file.make is not None:
        file.make(draft, advance)
    elif file.action == "write":
        draft.write_text(file.text or "", "utf-8", newline="")
        advance(file.size)
    else:
        origin = plan.origin(file)
        assert origin is not None, file
        if link and link_file(origin, draft):
            advance(file.size)
        else:
            copy_file(origin, draft, advance)
        if draft.stat().st_size != file.size:
            raise BadSource(f"{file.name} changed while it was copied; leave the source alone and run again")
    draft.replace(target)


def _take_name(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.replace(out)
        return
    old = out.parent / f".{out.name}.ropeconv-old"
    shutil.rmtree(old, ignore_errors=True)
    out.replace(old)
    partial.replace(out)
    shutil.rmtree(old)


def _take_names(partial: Path, plan: FilePlan) -> None:
    """Moves files out of the hidden folder, the first shard last, since the others cannot be loaded without it."""
    for file in reversed(plan.files):
        (partial / file.name).replace(plan.out.parent / file.name)
    partial.rmdir()
