"""Room at the front of a file, inserted and taken away by fallocate(2), which moves no data (ext4, XFS)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from ...errors import RopeconvError
from ..copying import write_at
from .edit import PAGE

COLLAPSE_RANGE, INSERT_RANGE = 0x08, 0x20  # linux/falloc.h


def move_data(file: int, shift: int) -> None:
    """Inserts `shift` bytes at the front of a file, or takes -shift bytes away there. Raises OSError.

    file: a descriptor for reading and writing. shift: a multiple of the filesystem's block size.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(file, INSERT_RANGE if shift > 0 else COLLAPSE_RANGE, 0, abs(shift)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def refuse_no_room(path: Path, shift: int) -> None:
    """Raises RopeconvError where the filesystem cannot move the data. shift: by how many bytes."""
    if not shift or (shift % PAGE == 0 and can_insert(path)):
        return
    raise RopeconvError(
        f"the new header of {path.name} needs {shift} bytes more than there are, and this filesystem cannot insert "
        "them; write a new file with -o"
        if shift > 0
        else f"the header of {path.name} has {-shift} bytes too many, which cannot be taken away on this filesystem; "
        "write a new file with -o"
    )


def refuse_same_size(path: Path, size: int, shift: int, final: int, grows: bool) -> None:
    """Raises RopeconvError where the size of a file would not tell whether its data has moved, as undoing has to know.

    path: the file. size, final: of it, before and after the change. shift: by how many bytes its data moves. grows:
    whether tensors are appended, so that the file has many sizes meanwhile.
    """
    if shift and (final == size or (shift < 0 and grows)):
        raise RopeconvError(
            f"{path.name} would have moved data and the size of before, so that a kill could not be undone; write a "
            "new file with -o"
        )


def can_insert(path: Path) -> bool:
    """Whether the filesystem inserts ranges, tried on a file beside `path` that never has a name."""
    try:
        probe = os.open(path.resolve().parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return False
    try:
        write_at(probe, bytes(2 * PAGE), 0)
        move_data(probe, PAGE)
        return os.fstat(probe).st_size == 3 * PAGE
    except (OSError, AttributeError):
        return False
    finally:
        os.close(probe)
