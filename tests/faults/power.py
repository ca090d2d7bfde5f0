"""Lost power: what was written and not made durable by fsync is not on the disk.

The model: names and sizes change in the order of the calls, as the journals of ext4 and XFS keep them, and contents
only get onto the disk by fsync. So after a kill, bytes that were not made durable are zeroed, or the file ends before
them.
"""

from __future__ import annotations

import os
from pathlib import Path


def lose(folder: Path, report: str, cut: bool) -> int:
    """Takes away what was not durable when a command ended, and returns how many files lost something.

    folder: that the command ran in. report: of the shim. cut: files end where they ended on the disk; else the bytes
    that are not on the disk are zeros.
    """
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    sizes: dict[tuple[int, int], int] = {}
    for line in report.splitlines():
        kind, *numbers = line.split(" ")
        if kind == "range":
            device, inode, start, end = map(int, numbers)
            ranges.setdefault((device, inode), []).append((start, end))
        elif kind == "file":
            device, inode, size = map(int, numbers)
            sizes[device, inode] = size
    lost = set()
    for path in folder.rglob("*"):
        status = path.lstat()
        identity = (status.st_dev, status.st_ino)
        if path.is_symlink() or identity in lost or identity not in ranges:
            continue
        lost.add(identity)
        if cut:
            os.truncate(path, min(status.st_size, sizes[identity]))
            continue
        with path.open("r+b") as file:
            for start, end in ranges[identity]:
                file.seek(start)
                file.write(bytes(max(0, min(end, status.st_size) - start)))
    return len(lost)


def not_durable(folder: Path, report: str) -> list[str]:
    """Names of files and folders that are not durable, of a command that has ended."""
    listed = {
        tuple(map(int, line.split(" ")[1:3])) for line in report.splitlines() if line.startswith(("range", "folder"))
    }
    paths = [folder, *folder.rglob("*")]
    return [str(path.relative_to(folder)) for path in paths if (path.lstat().st_dev, path.lstat().st_ino) in listed]
