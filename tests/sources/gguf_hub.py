"""A Hub with one large GGUF file, which notes what it is asked for and may answer otherwise."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np

from ..support.gguf_files import plain_tensors, write
from ..support.hub_server import Hub, handler

NAME = "me/tiny/quants/big.gguf"
LARGE = 5 << 20
FREQS = "rope_freqs.weight"
Change = Callable[[int, bytes, dict[str, str]], tuple[int, bytes, dict[str, str]]]


class Hostile(Hub):
    """A Hub that notes the requested ranges, "" for whole files. change: the answer in place of the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.change: Change | None = None


def hostile(hub: Hostile) -> type[BaseHTTPRequestHandler]:
    class Handler(handler(hub)):  # type: ignore[misc]
        def reply(self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
            if body:
                hub.seen.append(self.headers.get("Range") or "")
            if hub.change is not None and self.headers.get("Range"):
                status, content, headers = hub.change(status, content, dict(headers or {}))
            revision = self.path.split("/resolve/")[-1].split("/")[0]
            if headers and len(revision) == 40:
                headers = {**headers, "X-Repo-Commit": revision}
            super().reply(status, content, body, headers)

    return Handler


def large(path: Path, vocabulary: int = 5_000, **options: Any) -> Path:
    """A file with a header of some hundred kB and tensors of 5 MB, of which a plan reads one that is the last."""
    numbers = np.random.default_rng(1).standard_normal((LARGE // 4 // 128, 128), dtype=np.float32)
    tensors = {**plain_tensors(), "blk.0.ffn_up.weight": numbers, FREQS: np.linspace(1, 4, 32, dtype=np.float32)}
    return write(path, tensors=tensors, vocabulary=vocabulary, **options)


def fetched(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "home").rglob("*.gguf"))
