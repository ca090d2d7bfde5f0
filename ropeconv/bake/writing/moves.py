"""Moves what is finished from the hidden folder to its final names, so that a kill at any moment can be undone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ...formats.durable import TAKEN, exchange, rename_new, sync_folder
from ...rope.errors import RopeconvError
from .hidden import HiddenFolder, Move, Moves, OutputJournal
from .place import is_empty, refuse_foreign


def take_names(hidden: HiddenFolder, journal: OutputJournal, names: Iterable[str], force: bool, fsync: bool) -> None:
    """Moves files or folders to their final names; what is there is kept in the hidden folder.

    While several names are replaced, the last of them is free: shards of two outputs are never complete together.

    hidden: where they are. journal: of it. names: in the order of the moves, the first shard last. force: replace an
    earlier output. fsync: wait until the names are on the disk. Raises RopeconvError where a name was taken meanwhile,
    and where somebody has added to what is replaced; OSError where a move fails. All moves are undone then.
    """
    hidden.old().mkdir(exist_ok=True)
    moves = tuple(
        Move(name, _inode(hidden.new(name)) or 0, _occupant(hidden.final(name)) if force else None) for name in names
    )
    journal.add(Moves(moves), sync=fsync)
    parent = hidden.out.parent
    if fsync:
        for folder in (hidden.new(), hidden.root, parent):
            sync_folder(folder)
    try:
        if len(moves) > 1 and moves[-1].old is not None:
            hidden.final(moves[-1].name).rename(hidden.old(moves[-1].name))
        for move in moves:
            _move(hidden, move)
        first = _replaced(hidden, moves[-1])
        for move in moves:
            if move.old is not None:
                refuse_foreign(_replaced(hidden, move), first, hidden.final(move.name))
        if fsync:
            sync_folder(parent)
    except BaseException:
        _undo(hidden, moves)
        raise


def settle(hidden: HiddenFolder, journal: OutputJournal) -> OutputJournal:
    """Ends what an interrupted run has begun: clears up after moves that were complete, and undoes other ones.

    hidden: the folder of that run. journal: of it. Returns the journal as it is afterwards. Raises OSError.
    """
    if not journal.moves:
        return journal
    if all(_inode(hidden.final(move.name)) == move.new for move in journal.moves):
        hidden.clear()
    else:
        _undo(hidden, journal.moves)
    return OutputJournal.read(hidden.journal)


def _move(hidden: HiddenFolder, move: Move) -> None:
    new, final = hidden.new(move.name), hidden.final(move.name)
    if move.old is not None and _inode(hidden.old(move.name)) is None:
        exchange(new, final, hidden.old(move.name))
        return
    try:
        rename_new(new, final)
    except OSError as problem:
        if problem.errno not in TAKEN:
            raise
        raise RopeconvError(
            f"{final} came into being while it was written; move that away and run again, or choose another place with "
            "-o"
        ) from None


def _replaced(hidden: HiddenFolder, move: Move) -> Path:
    """Where that is which had a name before."""
    old = hidden.old(move.name)
    return hidden.new(move.name) if _inode(old) is None else old


def _undo(hidden: HiddenFolder, moves: Sequence[Move]) -> None:
    """Undoes moves; the name that is taken last is freed first, and what had it before comes back last."""
    for move in reversed(moves):
        new, final, old = hidden.new(move.name), hidden.final(move.name), hidden.old(move.name)
        if _inode(final) == move.new:
            if _inode(new) == move.new:  # between link and unlink, where the system has no rename that does not replace
                final.unlink()
            elif _inode(new) is not None:
                exchange(new, final, old)
            else:
                rename_new(final, new)
    for move in moves:
        new, final, old = hidden.new(move.name), hidden.final(move.name), hidden.old(move.name)
        for place in (new, old):
            if move.old is not None and _inode(place) == move.old and _inode(final) is None:
                rename_new(place, final)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def _occupant(path: Path) -> int | None:
    """The inode of what has a name; None where the name is free, or of an empty folder."""
    return None if is_empty(path) else _inode(path)
