"""Tiny checkpoints that are made once: a store of folders under `.cache/models`, by what they are
made from.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

STORE = Path(
    os.environ.get("ROPECONV_TESTS_STORE") or Path(__file__).parents[2] / ".cache" / "models"
)
LIMIT = 500
"""Folders that the store keeps; those that were not used for longest go first, but none of the last
hour.
"""
PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "numpy")


def stored(
    make: Callable[[Path], Any], folder: Path, sources: tuple[str, ...], *settings: Any
) -> Path:
    """Copy what `make` writes into `folder`, and call `make` only where the store has nothing with
    this key.

    Args:
        make: Writes files into a folder that it is given.
        folder: Where the copies go.
        sources: Paths of the Python files that decide what is written.
        settings: What decides it beside these; values that JSON has.
    """
    entry = STORE / key(sources, *settings)
    if not entry.exists():
        STORE.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=STORE))
        try:
            make(fresh)
            fresh.rename(entry)
        except OSError:
            if not entry.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        prune()
    os.utime(entry)
    folder.mkdir(parents=True, exist_ok=True)
    for file in entry.iterdir():
        shutil.copyfile(file, folder / file.name)
    return folder


def key(sources: tuple[str, ...], *settings: Any) -> str:
    files = [Path(source).read_text(encoding="utf-8") for source in (__file__, *sources)]
    text = json.dumps([list(versions()), files, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def versions() -> Iterator[str]:
    """The versions of the packages that make checkpoints, empty for those that are not
    installed.
    """
    for name in PACKAGES:
        try:
            yield importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield ""


def prune() -> None:
    """Delete what was not used for longest, beyond LIMIT."""
    entries = []
    for entry in STORE.iterdir():
        with suppress(FileNotFoundError):  # another process renames and prunes too
            entries.append((entry.stat().st_mtime, entry))
    for used, entry in sorted(entries)[: max(0, len(entries) - LIMIT)]:
        if used < time.time() - 3600:
            shutil.rmtree(entry, ignore_errors=True)
