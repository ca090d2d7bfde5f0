"""Executes a plan: files are written into a hidden folder, checked, and then moved to their final names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from ...formats.disk import FULL, Advance, human, refuse_changed, sync_folder, sync_tree
from ...inspection.receipts.receipt import CheckRecord
from ...inspection.receipts.writer import clear_drafts, write_receipt
from ...rope.errors import RopeconvError
from ...version import __version__
from ..plan import FilePlan
from .files import Writer
from .hidden import Begun, HiddenFolder, OutputJournal, locked, settle, take_names
from .place import ApplyOptions, refuse_full, refuse_occupied, refuse_place

BOOT = Path("/proc/sys/kernel/random/boot_id")

Verify = Callable[[Path], CheckRecord | None]


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

    Raises RopeconvError for an occupied or missing place, one that another process writes to, a full or failing disk,
    and a source that changes meanwhile. An interrupted run leaves its finished files in a hidden folder, from which the
    same command continues; a killed replacement of an earlier output is undone at the next start.
    """
    refuse_place(plan)
    with _sentences(plan), locked(plan.out) as hidden:
        journal = settle(hidden, OutputJournal.read(hidden.journal))
        refuse_occupied(plan, options.force)
        clear_drafts(plan.out)
        try:
            _write(plan, hidden, journal, options, verify, advance)
        except Exception:
            hidden.clear()
            refuse_changed(plan.seen)  # which may be why, and says more
            raise
        # the first shard of several last, since the others cannot be loaded without it
        names = [plan.out.name] if plan.is_folder else [file.name for file in reversed(plan.files)]
        try:
            refuse_occupied(plan, options.force)
            take_names(hidden, journal, names, options.force, options.fsync)
        except RopeconvError as problem:
            raise RopeconvError(f"{problem}{_kept(plan)}") from None
        hidden.clear()
    if options.fsync:
        with suppress(OSError):  # of the removal of the hidden folder alone: the output is on the disk
            sync_folder(plan.out.parent)
    return plan.out


def refuse_early(plan: FilePlan, force: bool) -> None:
    """Raises RopeconvError where `execute_plan` would refuse the place of an output, as far as can be seen before it.

    plan: what is to be written. force: replace an earlier output. What an interrupted run has left is not judged, nor
    is a folder that is not there yet.
    """
    if plan.out.parent.is_dir() and not HiddenFolder.beside(plan.out).root.exists():
        refuse_place(plan)
        refuse_occupied(plan, force)


def _write(
    whole: FilePlan,
    hidden: HiddenFolder,
    journal: OutputJournal,
    options: ApplyOptions,
    verify: Verify,
    advance: Advance,
) -> None:
    """Writes and checks everything in the hidden folder. Parameters and errors are those of `execute_plan`."""
    plan = whole
    if options.staged:
        plan = replace(whole, files=tuple(file for file in whole.files if file.action != "copy"))
    stamp = _stamp(plan, options)
    if journal.stamp != stamp:
        hidden.clear()
        journal.add(Begun(stamp))
    root = hidden.new(plan.out.name if plan.is_folder else "")
    writer = Writer(plan, root, hidden.drafts, journal, options, advance, dict(whole.seen))
    refuse_changed(writer.seen)
    pending = writer.resume()
    refuse_full(plan, pending, hidden.root, options.link)
    writer.write(pending)
    check = verify(root)
    receipt = whole.receipt() if plan.is_folder else None
    if receipt is not None:
        files = tuple(writer.record(file) for file in whole.files)
        write_receipt(root, msgspec.structs.replace(receipt, files=files, check=check), options.fsync)
    refuse_changed(writer.seen)
    if options.fsync:
        sync_tree(root)


def _stamp(plan: FilePlan, options: ApplyOptions) -> str:
    """What an interrupted run and this one have in common where this one goes on from its files."""
    files = [(file.action, file.name, file.size, file.sha256, file.text) for file in plan.files]
    seen = [(str(path), msgspec.to_builtins(found)) for path, found in plan.seen.items()]
    boot = "" if options.fsync or not BOOT.exists() else BOOT.read_text()  # a loss of power undoes what was not synced
    how = [options.link, options.checksum, options.fsync, boot, __version__]
    common = [plan.source.reference, plan.source.identity, plan.resume_key, how, files, seen]
    return hashlib.sha256(json.dumps(common).encode()).hexdigest()


@contextmanager
def _sentences(plan: FilePlan) -> Iterator[None]:
    """Turns errors of the disk into RopeconvError, and leaves those of the network, which have no number."""
    try:
        yield
    except OSError as problem:
        if problem.errno is None or isinstance(problem, ConnectionError | TimeoutError):
            raise
        if problem.errno in FULL:
            raise RopeconvError(
                f"the disk is full; {human(plan.bytes)} are needed at {plan.out.parent}, free some or use -o"
                + _kept(plan)
            ) from None
        raise RopeconvError(
            f"{plan.out} cannot be written ({problem.strerror}: {problem.filename or plan.out.parent}); check the disk "
            "and its permissions, or choose another place with -o" + _kept(plan)
        ) from None


def _kept(plan: FilePlan) -> str:
    """The files that an error leaves beside the output, and how to go on from it; empty where nothing is left."""
    root = HiddenFolder.beside(plan.out).root
    return f". {root} has what is finished: the same command goes on from it; else remove it" if root.is_dir() else ""
