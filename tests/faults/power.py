"""Lost power: what was written and not made durable by fsync is not on the disk.

The model: names and sizes change in the order of the calls, as the journals of ext4 and XFS keep them, and contents
only get onto the disk by fsync. So after a kill, bytes that were not made durable are zeroed, or the file ends before
them.
"""

from __future__ import annotations

import os
from pathlib import Path


def _numbers(report: str, *kinds: str) -> list[list[int]]:
    """The lines of some kinds in a report: device, inode, and what is said of it."""
    lines = [line.split(" ") for line in report.splitlines()]
    return [[int(number) for number in numbers] for kind, *numbers in lines if kind in kinds]


def _identity(path: Path) -> tuple[int, int]:
    return path.lstat().st_dev, path.lstat().st_ino


def lose(folder: Path, report: str, cut: bool) -> int:
    """Takes away what was not durable when a command ended, and returns how many files lost something.

    folder: that the command ran in. report: of the shim. cut: files end where they ended on the disk; else the bytes
    that are not on the disk are zeros.
    """
    sizes = {(device, inode): size for device, inode, size in _numbers(report, "file")}
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for device, inode, start, end in _numbers(report, "range"):
        ranges.setdefault((device, inode), []).append((start, end))
    files = {_identity(path): path for path in folder.rglob("*") if not path.is_symlink()}
    lost = {identity: path for identity, path in files.items() if identity in ranges}
    for identity, path in lost.items():
        size = path.stat().st_size
        if cut:
            os.truncate(path, min(size, sizes[identity]))
            continue
        with path.open("r+b") as file:
            for start, end in ranges[identity]:
                file.seek(start)
                file.write(bytes(max(0, min(end, size) - start)))
    return len(lost)


def not_durable(folder: Path, report: str) -> list[str]:
    """Names of files and folders that are not durable, of a command that has ended."""
    listed = {(device, inode) for device, inode, *_ in _numbers(report, "range", "folder")}
    return [str(path.relative_to(folder)) for path in (folder, *folder.rglob("*")) if _identity(path) in listed]
