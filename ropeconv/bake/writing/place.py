"""Where an output may be written, and what of an earlier one `--force` replaces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import BadSource
from ...formats.disk import free_bytes, human, same_blocks
from ...formats.gguf.header import read_header
from ...inspection.receipts.reader import read_receipt
from ...inspection.receipts.writer import DRAFT
from ...models.source import RECEIPT
from ...rope.errors import RopeconvError
from ..plan import FilePlan, PlannedFile

MARGIN = 16 * 1024 * 1024
NOT_ADDED = (".cache", DRAFT)
"""What the Hub's client and a killed `validate` leave in a folder, which nobody misses."""


def refuse_place(plan: FilePlan) -> None:
    """Raises RopeconvError for a place where no output can be: a link, the source, a folder that is not there."""
    out = plan.out
    if out.name in ("", ".."):
        raise RopeconvError(f"{out} is a folder without a name of its own; name a new one with -o")
    here = Path(plan.source.reference).resolve()
    if here.exists() and plan.source.kind != "hub":
        within = plan.is_folder and (here in out.resolve().parents or out.resolve() in here.parents)
        if out.resolve() == here or within:
            raise RopeconvError(f"{out} and the source lie within each other; choose another place with -o")
    for place in _places(plan):
        if place.is_symlink():
            raise RopeconvError(f"{place} is a link to {os.readlink(place)}; give the place itself with -o")
    if not out.parent.is_dir():
        raise RopeconvError(f"{out.parent} does not exist; create it, or choose another place with -o")


def refuse_occupied(plan: FilePlan, force: bool) -> None:
    """Raises RopeconvError where something is at the place of an output that may not be replaced.

    force: whether an earlier output of ropeconv may be replaced, as long as nobody has added files to it.
    """
    for place in _places(plan):
        if not os.path.lexists(place) or is_empty(place):
            continue
        if not force:
            raise RopeconvError(f"{place} exists; choose another place with -o, or replace it with --force")
        refuse_foreign(place, plan.out, place)


def refuse_foreign(place: Path, out: Path, known_as: Path) -> None:
    """Raises RopeconvError for what `--force` does not replace: another's file or folder, and added files in a folder.

    place: of an earlier output, or one of its shards. out: the place of its first shard. known_as: for the message.
    """
    if not _ours(place, out):
        raise RopeconvError(
            f"{known_as} exists and is not an output of ropeconv, so --force will not replace it; remove it"
        )
    if place.is_dir():
        _refuse_added(place, known_as)


def refuse_full(plan: FilePlan, pending: Sequence[PlannedFile], folder: Path, link: bool) -> None:
    """Raises RopeconvError where the disk has less space than an output needs.

    plan: of the output. pending: the files that are not there yet. folder: where they will be written. link: whether
    copies are hard links.
    """
    local = None if plan.source.kind == "hub" else next(filter(None, map(plan.origin, plan.files)), None)
    shared = link or same_blocks(local, folder)
    needed = sum(file.size for file in pending if not (shared and file.action == "copy")) + MARGIN
    free = free_bytes(folder)
    if needed > free:
        raise RopeconvError(
            f"{plan.out.parent} has {human(free)} free and the output needs {human(needed)}; "
            "free some, use -o, or share unchanged files with --link"
        )


def is_empty(place: Path) -> bool:
    """Whether a place is a folder with nothing in it."""
    return place.is_dir() and not place.is_symlink() and not any(place.iterdir())


def _places(plan: FilePlan) -> list[Path]:
    return [plan.out] if plan.is_folder else [plan.out.with_name(file.name) for file in plan.files]


def _ours(place: Path, out: Path) -> bool:
    """Whether a place is an output of ropeconv, by the receipt in the folder or among the keys of the GGUF file."""
    if place.is_dir() or out.suffix != ".gguf":
        return (place / RECEIPT).is_file()
    try:
        return RECEIPT in read_header(out if out.exists() else place).values
    except BadSource:
        return False


def _refuse_added(folder: Path, known_as: Path) -> None:
    known = {file.name for file in read_receipt(folder).files} | {RECEIPT}
    added = sorted(name for name in _names(folder) if name not in known and name.split("/")[0] not in NOT_ADDED)
    if added:
        more = f" and {len(added) - 1} more" if len(added) > 1 else ""
        raise RopeconvError(
            f"{known_as} has {added[0]}{more}, which ropeconv did not write and --force would delete; move it away, or "
            "choose another place with -o"
        )


def _names(root: Path) -> Iterator[str]:
    """Names of all files in a folder and of links to folders, relative to it."""
    for folder, subfolders, files in os.walk(root):
        for name in (*files, *(name for name in subfolders if Path(folder, name).is_symlink())):
            yield Path(folder, name).relative_to(root).as_posix()


@dataclass(frozen=True)
class ApplyOptions:
    """How a plan is executed.

    link: hard-link unchanged files. force: replace an earlier output. checksum: hash copied weights as well, for the
    receipt. staged: leave out files that are copied unchanged, for a caller that takes them from the source. fsync:
    wait until everything is on the disk before it takes its final name.
    """

    link: bool = False
    force: bool = False
    checksum: bool = False
    staged: bool = False
    fsync: bool = True
