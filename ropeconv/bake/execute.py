"""Carries out a plan: into a sibling folder first, renamed when everything is there and checked."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadSource, RopeconvError
from ..formats.copying import Advance, copy_file, free_bytes, human, link_file, same_blocks
from ..formats.gguf import read_header
from ..receipts.write import receipt
from ..sources import RECEIPT
from .plan import Plan, Step

COPIED, COPIES = ("copy", "patch"), 2
MARGIN = 16 * 1024 * 1024
STAMP = ".ropeconv-plan"

Verify = Callable[[Path], dict[str, Any] | None]


def apply(
    plan: Plan,
    verify: Verify = lambda folder: None,
    link: bool = False,
    force: bool = False,
    checksum: bool = False,
    advance: Advance = lambda done: None,
    staged: bool = False,
) -> Path:
    """Writes the output and returns its place: a folder, or a GGUF file (of several shards the first).

    verify: looks at the finished files in their folder before they take their names, and returns what to note in the
    receipt; it raises to stop. link: hard-link unchanged files. force: replace an output that exists. advance: bytes
    done. staged: leave out what is merely copied, for somebody who takes that from the source.

    A known failure leaves nothing behind. An interrupted run leaves its finished files in a hidden sibling, and the
    same command picks them up.
    """
    _refuse_place(plan, force)
    partial = plan.out.parent / f".{plan.out.name}.ropeconv-partial"
    whole = plan
    if staged:
        plan = replace(whole, steps=tuple(step for step in whole.steps if step.action != "copy"))
    try:
        _resume_or_clear(partial, _stamp(plan, link))
        _need_space(plan, partial, link)
        _carry_out_all(plan, partial, link, advance)
        check = verify(partial)
        if plan.is_folder:
            (partial / RECEIPT).write_text(receipt(whole, partial, check, checksum), "utf-8")
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


def _refuse_place(plan: Plan, force: bool) -> None:
    out = plan.out
    here = Path(plan.source.reference).resolve()
    if here.exists() and plan.source.kind != "hub":
        within = plan.is_folder and (here in out.resolve().parents or out.resolve() in here.parents)
        if out.resolve() == here or within:
            raise RopeconvError(f"{out} and the source lie within each other; choose another place with -o")
    places = [out] if plan.is_folder else [out.parent / step.name for step in plan.steps]
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
    """Whether an earlier run has written this: its receipt is there, in the folder or among the keys."""
    if place.is_dir() or out.suffix != ".gguf":
        return (place / RECEIPT).is_file()
    try:
        return RECEIPT in read_header(out if out.exists() else place).values
    except BadSource:
        return False


def _stamp(plan: Plan, link: bool) -> str:
    steps = [(step.action, step.name, step.size, step.text) for step in plan.steps]
    origins = [] if plan.source.kind == "hub" else [plan.origin(step) for step in plan.steps]
    mtimes = [origin.stat().st_mtime_ns for origin in origins if origin is not None]
    identity = [plan.source.reference, plan.source.commit, plan.schedule.digest, link, steps, mtimes]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _resume_or_clear(partial: Path, stamp: str) -> None:
    mark = partial / STAMP
    if mark.is_file() and mark.read_text("utf-8") == stamp:
        return
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    mark.write_text(stamp, "utf-8")


def _need_space(plan: Plan, partial: Path, link: bool) -> None:
    pending = [step for step in plan.steps if not (partial / step.name).exists()]
    local = None if plan.source.kind == "hub" else next(filter(None, map(plan.origin, plan.steps)), None)
    shared = link or same_blocks(local, partial)
    needed = sum(step.size for step in pending if not (shared and step.action == "copy")) + MARGIN
    free = free_bytes(partial)
    if needed > free:
        raise RopeconvError(
            f"{plan.out.parent} has {human(free)} free and the output needs {human(needed)}; "
            "free some, use -o, or share unchanged files with --link"
        )


def _carry_out_all(plan: Plan, partial: Path, link: bool, advance: Advance) -> None:
    """Every step. Files are copied two at a time: one copy leaves a disk, or the memory behind it, half idle."""
    copied = [step for step in plan.steps if step.action in COPIED]
    for step in plan.steps:
        if step.action not in COPIED:
            _carry_out(plan, step, partial / step.name, link, advance)
    pool = ThreadPoolExecutor(COPIES)
    try:
        running = [pool.submit(_carry_out, plan, step, partial / step.name, link, advance) for step in copied]
        for future in as_completed(running):
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _carry_out(plan: Plan, step: Step, target: Path, link: bool, advance: Advance) -> None:
    if target.exists():
        advance(step.size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(target.name + ".part")
    draft.unlink(missing_ok=True)
    if step.make is not None:
        step.make(draft, advance)
    elif step.action == "write":
        draft.write_text(step.text or "", "utf-8", newline="")
        advance(step.size)
    else:
        origin = plan.origin(step)
        assert origin is not None, step
        if link and link_file(origin, draft):
            advance(step.size)
        else:
            copy_file(origin, draft, advance)
        if draft.stat().st_size != step.size:
            raise BadSource(f"{step.name} changed while it was copied; leave the source alone and run again")
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


def _take_names(partial: Path, plan: Plan) -> None:
    """Moves files out of the hidden sibling, the first shard last: without it nobody loads the others."""
    for step in reversed(plan.steps):
        (partial / step.name).replace(plan.out.parent / step.name)
    partial.rmdir()
