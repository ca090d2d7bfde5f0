"""The place of an output, the hidden folder beside it in which the output is written, and the moves
to final names.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import BadSource
from ..formats.disk import (
    TAKEN,
    FileIdentity,
    exchange,
    free_bytes,
    human,
    obstacle,
    rename_new,
    same_blocks,
    sync_folder,
)
from ..formats.files import try_lock
from ..formats.gguf.header import read_header
from ..formats.journal import decode_line, encode_line
from ..formats.kind import is_gguf
from ..inspection.receipts.companion import read_companion
from ..inspection.receipts.storage import DRAFT, has_own_card, read_receipt
from ..models.source import CARD, RECEIPT
from ..rope.errors import RopeconvError
from .plan import FilePlan, PlannedFile

MARGIN = 16 * 1024 * 1024
NOT_ADDED = (".cache", DRAFT)
"""Files that the Hub's client and a killed `validate` leave in a folder; --force deletes them."""
LOCK = "lock"
NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}
"""Errors of removing a folder on NFS, where a removed file remains until it is closed."""


def refuse_place(plan: FilePlan) -> None:
    """Raise RopeconvError for a place that cannot have an output, such as a link or the source."""
    out = plan.out
    if out.name in ("", ".."):
        raise RopeconvError(f"{out} is a folder without a name of its own; name a new one with -o")

    # an output in its own source would change what is being read
    source = Path(plan.source.reference).resolve()
    if source.exists() and plan.source.kind != "hub":
        place = out.resolve()
        is_nested = source in place.parents or place in source.parents
        if place == source or (plan.is_folder and is_nested):
            raise RopeconvError(
                f"{out} and the source lie within each other; choose another place with -o"
            )

    # a rename would replace the link, and leave its target as it was
    for path in _places(plan):
        if path.is_symlink():
            raise RopeconvError(
                f"{path} is a link to {os.readlink(path)}; give the place itself with -o"
            )
    problem = obstacle(out.parent)
    if problem:
        raise RopeconvError(f"{problem}, so {out} cannot be written; choose another place with -o")


def refuse_occupied(plan: FilePlan, force: bool) -> None:
    """Raise RopeconvError where a file or folder at the place of an output may not be replaced.

    With `force`, an earlier output of ropeconv may be replaced, if no files were added to it.
    """
    for path in _places(plan):
        if not os.path.lexists(path) or is_empty(path):
            continue
        refuse_foreign(path, first_shard=plan.out, path_for_user=path)
        if not force:
            raise RopeconvError(
                f"{path} exists; choose another place with -o, or replace it with --force"
            )


def refuse_foreign(earlier: Path, first_shard: Path, path_for_user: Path) -> None:
    """Raise RopeconvError where `--force` must not replace a file or folder.

    --force deletes what it replaces. It replaces only an output with a receipt (the record of how
    the output was made), and only a folder without added files, since ropeconv can write these
    again.

    Args:
        earlier: The file or folder that would be replaced: an earlier output, or one of its shards.
        first_shard: The first shard of a split GGUF model, which has the receipt; otherwise the
            same path as `earlier`.
        path_for_user: The path for the message, such as model.gguf. `earlier` may be another path
            to the same file, in the hidden folder beside the output.
    """
    if not _has_receipt(earlier, first_shard):
        raise RopeconvError(
            f"{path_for_user} exists and has no receipt of ropeconv, so --force will not replace"
            " it; choose another place with -o, or remove it"
        )
    if not earlier.is_dir():
        return
    # the folder of an adapter, a graph or a set of profiles, which has another kind of receipt
    is_companion = read_companion(earlier) is not None
    if is_companion:
        raise RopeconvError(f"{path_for_user} exists; remove it, or choose another place with -o")

    added = _added_files(earlier)
    if added:
        first, *others = added
        more = f" and {len(others)} more" if others else ""
        raise RopeconvError(
            f"{path_for_user} has {first}{more}, which ropeconv did not write and --force would"
            " delete; move it away, or choose another place with -o"
        )


def _has_receipt(place: Path, first_shard: Path) -> bool:
    """Whether ropeconv wrote a file or folder; the first of several shards has the receipt."""
    # while shards are replaced, the first one may have moved away
    first = first_shard if first_shard.exists() else place
    if place.is_dir() or not is_gguf(first):
        return (place / RECEIPT).is_file()
    try:
        return RECEIPT in read_header(first).values
    except BadSource:
        return False


def _added_files(place: Path) -> list[str]:
    """The files of an earlier output that are not in its receipt, sorted."""
    receipt = read_receipt(place)
    known = {file.name for file in receipt.files} | {RECEIPT}
    if has_own_card(place, receipt):
        known.discard(CARD)

    added = []
    for name in _names(place):
        top = name.split("/")[0]
        if name not in known and top not in NOT_ADDED:
            added.append(name)
    return sorted(added)


def refuse_full(plan: FilePlan, pending: Sequence[PlannedFile], folder: Path, link: bool) -> None:
    """Raise RopeconvError where a disk has less space than the pending files of an output need.

    Copies need no space if they are hard links, or if source and output are on a filesystem such as
    btrfs or XFS, where a copy shares the blocks of the original.

    Args:
        plan: The plan of the output.
        pending: Its files that are not written yet.
        folder: A folder on the disk.
        link: Whether unchanged files become hard links.
    """
    # any local file of the source tells its filesystem; files on the Hub are not downloaded for
    # that
    file_of_source = None
    if plan.source.kind != "hub":
        for file in plan.files:
            file_of_source = plan.origin(file)
            if file_of_source is not None:
                break
    copies_are_free = link or same_blocks(file_of_source, folder)

    needed = MARGIN
    if pending:
        needed += plan.temporary_bytes
    for file in pending:
        if file.action == "copy" and copies_are_free:
            continue
        needed += file.size

    free = free_bytes(folder)
    if needed > free:
        raise RopeconvError(
            f"{plan.out.parent} has {human(free)} free and the output needs {human(needed)}; "
            "free some, use -o, or share unchanged files with --link"
        )


def is_empty(place: Path) -> bool:
    """Return whether a path is an empty folder."""
    return place.is_dir() and not place.is_symlink() and not any(place.iterdir())


def _places(plan: FilePlan) -> list[Path]:
    """The paths that an output takes: a folder, or the shards of a GGUF model."""
    if plan.is_folder:
        return [plan.out]
    return [plan.out.with_name(file.name) for file in plan.files]


def _names(root: Path) -> Iterator[str]:
    """Names of all files in a folder and of links to folders, relative to it."""
    for folder, subfolders, files in os.walk(root):
        links = [name for name in subfolders if Path(folder, name).is_symlink()]
        for name in (*files, *links):
            yield Path(folder, name).relative_to(root).as_posix()


class HiddenFolder:
    """The hidden folder of an output, which need not exist.

    It has the files `lock` and `journal`, and the folders `drafts` (incomplete files), `new`
    (finished ones), and `old` (files that are being replaced, where a system cannot exchange two
    names).
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = out.parent / f".{out.name}.ropeconv-partial"
        self.journal = self.root / "journal"
        self.drafts = self.root / "drafts"
        self.new = self.root / "new"
        self.old = self.root / "old"

    def clear(self) -> None:
        """Remove everything but the lock, as far as possible."""
        for folder in (self.drafts, self.new, self.old):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            for path in self.root.iterdir():
                if path.name == LOCK:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def discard_stopped_run(out: Path) -> None:
    """Remove the files that a stopped run keeps in the hidden folder beside an output.

    The output itself stays.

    Raises RopeconvError where another process is writing the output.
    """
    if HiddenFolder(out).root.is_dir():
        with locked(out) as hidden:
            hidden.clear()


@contextmanager
def locked(out: Path, keep: bool = False) -> Iterator[HiddenFolder]:
    """Make and lock the hidden folder in which an output is written, and remove it at the end.

    After an error, finished files stay in the folder, so that the same command can continue with
    them. Without an error, the caller has moved all files out of the folder.

    Args:
        out: The place of the output.
        keep: Whether the caller leaves finished files in the folder also without an error, for a
            later call that moves them to their final names.

    Yields:
        The hidden folder.

    Raises:
        RopeconvError: Another process has the folder, or the folder cannot be removed.
        OSError: The folder cannot be made.
    """
    hidden = HiddenFolder(out)
    if hidden.root.is_symlink():
        raise RopeconvError(f"{hidden.root} is a link, and ropeconv writes there; remove it")
    lock_file = _lock(hidden)
    try:
        yield hidden
    except BaseException:  # the run failed or was stopped
        # `_remove` raises OSError for a folder with finished files, which then stays
        with suppress(OSError):
            _remove(hidden)
        raise
    else:  # the run ended without an error
        try:
            _remove(hidden)
        except OSError as problem:
            if not keep:
                raise RopeconvError(
                    f"{out} is complete, and {hidden.root} cannot be removed ({problem.strerror});"
                    " check the disk, and remove that"
                ) from None
    finally:
        # On NFS, the lock file stays in the folder until it is closed, so that the folder can only
        # be removed now. Elsewhere this does nothing.
        lock_file.close()
        with suppress(OSError):
            hidden.root.rmdir()


def _remove(hidden: HiddenFolder) -> None:
    """Remove the lock, and the hidden folder if it is empty then; else raise OSError."""
    names = {path.name for path in hidden.root.iterdir()}
    # NFS keeps a removed file that is open, under a name such as .nfs0001
    is_cleared = all(name == LOCK or name.startswith(".nfs") for name in names)

    # the lock holds until it is closed; a waiting process sees that the file is gone
    hidden.root.joinpath(LOCK).unlink()
    try:
        hidden.root.rmdir()
    except OSError as problem:
        if not (is_cleared and problem.errno in NOT_EMPTY):
            raise


def _lock(hidden: HiddenFolder) -> BinaryIO:
    """Make the hidden folder, and lock the lock file in it.

    Raises:
        RopeconvError: Another process has the lock.
    """
    path = hidden.root / LOCK
    while True:
        with suppress(FileExistsError):
            hidden.root.mkdir()
        try:
            file = path.open("ab")
        except FileNotFoundError:
            continue  # another process has just removed the folder
        except OSError:
            with suppress(OSError):
                hidden.root.rmdir()
            raise
        if try_lock(file) == "busy":
            file.close()
            raise RopeconvError(
                f"another ropeconv is writing {hidden.out}; wait for it, or choose another place"
                " with -o"
            )
        # another process may have removed this lock and made a new one before it was locked here
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


class Begun(msgspec.Struct, frozen=True, tag="plan"):
    """The first line."""

    stamp: str
    """A digest of the plan, which another run compares with its own."""


class FinishedFile(msgspec.Struct, frozen=True, tag="file"):
    """A file that is complete, and on the disk."""

    name: str
    """Its name in the output."""

    identity: FileIdentity

    sample: str
    """The digest of some of its bytes, from `sample_digest`."""

    sha256: str | None = None
    """None where the file was not read completely."""


class Move(msgspec.Struct, frozen=True):
    """A move to a final name."""

    name: str

    new: int
    """The inode that gets the name."""

    old: int | None
    """The inode that has the name before the move; None where it is free."""


class Moves(msgspec.Struct, frozen=True, tag="moves"):
    """Written before the first of the moves."""

    moves: tuple[Move, ...]


Line = Begun | FinishedFile | Moves


@dataclass
class OutputJournal:
    """The state in a journal."""

    path: Path

    stamp: str = ""
    """The stamp of the first line; empty without one."""

    finished: dict[str, FinishedFile] = field(default_factory=dict)
    """The finished files by name."""

    moves: tuple[Move, ...] = ()

    @classmethod
    def read(cls, path: Path) -> OutputJournal:
        """Read a journal; one that does not exist is empty.

        Damaged lines, which a kill or a loss of power leaves, are left out.
        """
        journal = cls(path)
        if not path.is_file():
            return journal
        for text in path.read_bytes().split(b"\n"):
            line: Line | None = decode_line(text, Line)
            if line is not None:
                journal._apply(line)
        return journal

    def add(self, line: Line, sync: bool = False) -> None:
        """Add a line; with `sync`, wait until it is on the disk. Raises OSError."""
        with self.path.open("ab") as file:
            file.write(b"\n" + encode_line(line))  # the line before it may have been cut off
            file.flush()
            if sync:
                os.fsync(file.fileno())
        self._apply(line)

    def _apply(self, line: Line) -> None:
        """Add a line of the journal to what is known of the run."""
        if isinstance(line, Begun):
            self.stamp = line.stamp
            self.finished = {}
            self.moves = ()
        elif isinstance(line, FinishedFile):
            self.finished[line.name] = line
        else:
            self.moves = line.moves


@dataclass(frozen=True)
class SideFile:
    """A small text that gets its name in one set with an output, such as its Modelfile."""

    name: str
    """The final name, beside the output."""

    text: str

    refuse_other: Callable[[Path], None]
    """Raises RopeconvError for a file that this one may not replace."""


def take_names(
    hidden: HiddenFolder,
    journal: OutputJournal,
    names: Sequence[str],
    force: bool,
    fsync: bool,
    beside: SideFile | None = None,
) -> None:
    """Move files or folders to their final names; the replaced ones are kept in the hidden folder.

    For two shards and a Modelfile the order is: the old Modelfile and the old first shard are moved
    away; then the second shard, the first shard and the Modelfile get their names.

    Several names cannot be replaced in one step, and a kill may come between two. So that nothing
    loads a mixture of two outputs, the first shard, without which no other can be loaded, is moved
    away before all other moves and gets its new file after them. The same goes for the file beside
    the output (a Modelfile), which must not name an output that it was not made for.

    Args:
        hidden: The hidden folder, with the files in `new`.
        journal: Its journal, in which the moves are written before the first.
        names: The final names in the order of the moves, the first shard last.
        force: Replace an earlier output.
        fsync: Wait until the names are on the disk.
        beside: A file that gets its name after them.

    Raises:
        RopeconvError: Where a name was taken meanwhile, and where files were added to the replaced
            output. All moves are undone then.
        OSError: Where a move fails. All moves are undone then.
    """
    hidden.old.mkdir(exist_ok=True)
    moves = []
    for name in names:
        may_replace = force and not is_empty(hidden.out.with_name(name))
        moves.append(_plan_move(hidden, name, may_replace))
    move_beside = None
    if beside is not None:
        move_beside = _plan_move(hidden, beside.name, may_replace=True)

    # All moves in their order, and the moves whose names are freed before all others. The name of
    # the file beside the output is freed first: without it, the shards still belong together.
    all_moves = list(moves)
    freed_first = []
    if move_beside is not None:
        all_moves.append(move_beside)
        freed_first.append(move_beside)
    if len(moves) > 1:
        first_shard = moves[-1]
        freed_first.append(first_shard)

    # The moves are on the disk before the first of them, and so are the files that move.
    parent = hidden.out.parent
    journal.add(Moves(tuple(all_moves)), sync=fsync)
    if fsync:
        for folder in (hidden.new, hidden.root, parent):
            sync_folder(folder)

    try:
        for move in freed_first:
            replaces_file = move.old is not None
            if replaces_file:
                parent.joinpath(move.name).rename(hidden.old / move.name)
        for move in all_moves:
            _move(hidden, move)

        # what was replaced is looked at only now, as nothing can be added to it any more
        _refuse_replaced(hidden, moves)
        if beside is not None and move_beside is not None and move_beside.old is not None:
            beside.refuse_other(_replaced_place(hidden, move_beside))
        if fsync:
            sync_folder(parent)
    except BaseException:
        _undo(hidden, all_moves)
        raise


def _plan_move(hidden: HiddenFolder, name: str, may_replace: bool) -> Move:
    """The move of a finished file to its final name, which another file may have.

    The inodes say after a kill which of the two files has the name.
    """
    old = None
    if may_replace:
        old = _inode(hidden.out.with_name(name))
    return Move(name=name, new=_inode(hidden.new / name) or 0, old=old)


def _refuse_replaced(hidden: HiddenFolder, moves: Sequence[Move]) -> None:
    """Raise RopeconvError where a replaced output, which has moved away now, must not be replaced.

    Files may have been added to it until that moment.
    """
    first_shard = _replaced_place(hidden, moves[-1])
    for move in moves:
        if move.old is not None:
            path_for_user = hidden.out.parent / move.name
            refuse_foreign(_replaced_place(hidden, move), first_shard, path_for_user)


def _replaced_place(hidden: HiddenFolder, move: Move) -> Path:
    """The place of a replaced file after its move; `new` where the system exchanges names."""
    old = hidden.old / move.name
    return hidden.new / move.name if _inode(old) is None else old


def settle(hidden: HiddenFolder, journal: OutputJournal) -> OutputJournal:
    """End the moves of an interrupted run, and return the journal after it.

    Complete moves are kept, others undone. Raises OSError.
    """
    if not journal.moves:
        return journal
    if all(_inode(hidden.out.with_name(move.name)) == move.new for move in journal.moves):
        hidden.clear()
    else:
        _undo(hidden, journal.moves)
    return OutputJournal.read(hidden.journal)


def _move(hidden: HiddenFolder, move: Move) -> None:
    """Move a finished file from the hidden folder to its final name, and keep a replaced file.

    Args:
        hidden: The hidden folder beside the output. The finished file is in its folder `new`.
        move: The final name (`name`), and the inode of the file that is replaced (`old`); None if
            no file is replaced.

    Raises:
        RopeconvError: Another program has taken the name meanwhile.
        OSError: The disk refuses the move.
    """
    path_in_new = hidden.new / move.name
    path_in_old = hidden.old / move.name
    final_path = hidden.out.with_name(move.name)

    # 1. The replaced file still has the final name: the two files exchange their places. (The first
    # of several shards is moved into the folder `old` by the caller, before all others.)
    replaces_file = move.old is not None
    was_moved_away = _inode(path_in_old) is not None
    if replaces_file and not was_moved_away:
        exchange(path_in_new, final_path, spare=path_in_old)
        return

    # 2. The name is free.
    try:
        rename_new(path_in_new, final_path)
    except OSError as problem:
        if problem.errno not in TAKEN:
            raise
        raise RopeconvError(
            f"{final_path} was created by another program meanwhile; move that away and run again,"
            " or choose another place with -o"
        ) from None


def _undo(hidden: HiddenFolder, moves: Sequence[Move]) -> None:
    """Give the earlier output its names back, after an error or a kill in the middle of moves.

    A move gives a new file its final name, such as model.gguf. Before the move, the new file is in
    the folder `hidden.new`. After the move, an earlier file of that name is in `hidden.new` or
    `hidden.old`. Files are recognised by their inodes, which do not change when they are renamed.

    Args:
        hidden: The hidden folder beside the output.
        moves: The moves, of which any may be done. Each has the final name (`name`), the inode of
            the new file (`new`), and the inode of the earlier file (`old`, or None). The first
            shard of a model comes last: without it no runtime loads the others, so no mixture of
            two models can be loaded at any time.
    """
    # 1. Each new file that has its final name goes back into the hidden folder.
    for move in reversed(moves):
        final_path = hidden.out.with_name(move.name)
        path_in_new = hidden.new / move.name
        path_in_old = hidden.old / move.name
        was_moved = _inode(final_path) == move.new
        if not was_moved:
            continue

        inode_in_new = _inode(path_in_new)
        if inode_in_new == move.new:
            # The new file has two names. On some filesystems, `rename_new` makes a hard link and
            # then removes the first name; it was killed between the two steps.
            final_path.unlink()
        elif inode_in_new is not None:
            # the earlier file is there: the two were exchanged
            exchange(path_in_new, final_path, spare=path_in_old)
        else:
            rename_new(final_path, path_in_new)

    # 2. Each earlier file that is still in the hidden folder gets its name back.
    for move in moves:
        if move.old is None:  # the name was free
            continue
        final_path = hidden.out.with_name(move.name)
        for path in (hidden.new / move.name, hidden.old / move.name):
            is_earlier_file = _inode(path) == move.old
            is_name_free = _inode(final_path) is None
            if is_earlier_file and is_name_free:
                rename_new(path, final_path)


def _inode(path: Path) -> int | None:
    """Return the inode of a path, by which a file is recognised; None if nothing is there."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
