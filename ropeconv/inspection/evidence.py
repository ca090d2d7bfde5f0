"""Facts for a page of evidence: how large a file or folder is, and when the page is written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ..errors import counted
from .kv_cache import display


def described_size(path: Path) -> str:
    """The size of a file, or of a folder with the number of its files; empty where there is none."""
    try:
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        size = display(sum(one.stat().st_size for one in files))
    except OSError:
        return ""
    if not files:
        return ""
    return size if path.is_file() else f"{size} in {counted(len(files), 'file')}"


def now() -> str:
    """The time in UTC, to the minute."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
