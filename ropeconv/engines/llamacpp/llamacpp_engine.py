"""LlamaCppEngine: a GGUF file in llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..engine import Engine, Progress
from .client import Override, run


class LlamaCppEngine(Engine):
    """A GGUF file as llama.cpp runs it on the CPU, in a new process for every call.

    path: the file (of several shards the first). overrides: metadata keys, as (type, value), that replace those of the
    file when it is loaded.
    """

    gives = frozenset({"logits", "tokens"})

    def __init__(self, path: Path, overrides: Mapping[str, Override] | None = None) -> None:
        self.path, self.overrides = path, dict(overrides or {})
        try:
            self.runtime = f"llama.cpp (llama-cpp-python {version('llama-cpp-python')})"
        except PackageNotFoundError:
            self.runtime = "llama.cpp"

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None) -> Any:
        found = self._run(ids, wanted=list(kept))
        (progress or Progress()).advance(len(ids))
        return found

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        return [int(token) for token in self._run(ids, generate=count)]

    def _run(self, ids: Sequence[int], **wanted: Any) -> Any:
        overrides = {key: list(value) for key, value in self.overrides.items()}
        threads = os.cpu_count() or 1
        return run(self.path, {"tokens": list(ids), "overrides": overrides, "threads": threads, **wanted})
