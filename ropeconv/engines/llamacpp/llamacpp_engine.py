"""LlamaCppEngine: a GGUF file in llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...formats.scratch import scratch
from ...formats.threads import cores
from ..engine import Engine, Progress, TokenLosses
from .messages import Done, Generate, Job, Load, Logits, Losses, Lost, Override, Tokens
from .process import Process

T = TypeVar("T", bound=msgspec.Struct)


class LlamaCppEngine(Engine):
    """A GGUF file as llama.cpp runs it, in a new process for every call, or in one process while it is `opened`.

    path: the file (of several shards the first). overrides: metadata keys, as (type, value), that replace those of the
    file when it is loaded. options: other fields of `Load`; without any it computes on the CPU, as plainly and exactly
    as llama.cpp can.
    """

    gives = frozenset({"logits", "token_losses", "tokens"})

    def __init__(self, path: Path, overrides: Mapping[str, Override] | None = None, **options: Any) -> None:
        self.path, self.overrides, self.options = path, dict(overrides or {}), options
        self.process: Process | None = None
        self.runtime = runtime()

    @property
    def load(self) -> Load:
        """What the program is asked to load."""
        return Load(path=str(self.path), overrides=self.overrides, **{"threads": cores(), **self.options})

    @contextmanager
    def opened(self) -> Iterator[LlamaCppEngine]:
        """One process for all calls, while it is entered. Raises RopeconvError where llama.cpp does not load it."""
        with Process(self.load) as self.process:
            try:
                yield self
            finally:
                self.process = None

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None) -> Any:
        import numpy as np

        with scratch() as folder:
            out = folder / "logits.npy"
            self._ask(Logits(list(ids), list(kept), str(out)), Done, (progress or Progress()).advance)
            return np.load(out)

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        import numpy as np

        found = self._ask(Losses(list(ids), list(targets)), Lost, (progress or Progress()).advance)
        return TokenLosses(np.frombuffer(found.loss), np.frombuffer(found.right, bool))

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        return self._ask(Generate(list(ids), count), Tokens).tokens

    def _ask(self, job: Job, kind: type[T], advance: Callable[[int], None] = lambda count: None) -> T:
        if self.process is not None:
            return self.process.ask(job, kind, advance)
        with Process(self.load) as process:
            return process.ask(job, kind, advance)


def runtime() -> str:
    """Name and version of llama.cpp, as far as that is known without it."""
    try:
        return f"llama.cpp (llama-cpp-python {version('llama-cpp-python')})"
    except PackageNotFoundError:
        return "llama.cpp"
