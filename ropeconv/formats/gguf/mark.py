"""The mark on a file whose change in place is not finished: an extended attribute, which all its hard links share.

Where the filesystem has none, or the system, only the name under which the file was changed leads to the journal.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MARK = "user.ropeconv.journal"
"""The attribute, which holds the path of the journal."""


def set_mark(file: int, journal: Path) -> None:
    """Marks an open file as one that is restored from a journal."""
    with suppress(AttributeError, OSError):
        os.setxattr(file, MARK, os.fsencode(journal))


def remove_mark(file: int) -> None:
    """Removes the mark from an open file."""
    with suppress(AttributeError, OSError):
        os.removexattr(file, MARK)


def marked_journal(path: Path) -> Path | None:
    """The journal that the mark on a file names; None where there is no mark, or no such journal any more."""
    try:
        journal = Path(os.fsdecode(os.getxattr(path, MARK)))
    except (AttributeError, OSError):
        return None
    return journal if os.path.lexists(journal) else None
