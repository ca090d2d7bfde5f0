"""GGUF files in llama.cpp, also with a schedule as overrides of metadata keys.

The overrides follow from the schedule and not from an encoding, so that the reference shares no code with the output.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..formats.disk import cores, human
from ..formats.files import scratch
from ..rope.forms import InterpolatedForm, Plain, Yarn
from ..rope.schedule import Schedule
from ..runtimes.llamacpp.archs import find_arch
from .engine import Engine, Progress, TokenLosses
from .llamacpp_process import (
    Done,
    Generate,
    Job,
    LlamaCppError,
    Load,
    LogitsJob,
    LossesAnswer,
    LossesJob,
    Override,
    Process,
    TokensJob,
)

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T", bound=msgspec.Struct)


class LlamaCppEngine(Engine):
    """A GGUF file as llama.cpp runs it, in a new process for every call, or in one process while it is `opened`.

    path: the file, or the first of several shards. overrides: (type, value) of metadata keys that replace those of the
    file. options: other fields of `Load`; by default it computes on the CPU, as exactly as llama.cpp can.
    """

    gives = frozenset({"logits", "token_losses", "tokens"})

    def __init__(self, path: Path, overrides: Mapping[str, Override] | None = None, **options: Any) -> None:
        self.path, self.overrides, self.options = path, dict(overrides or {}), options
        self.process: Process | None = None
        self.runtime = runtime()

    @property
    def load(self) -> Load:
        """The first line for the program."""
        return Load(path=str(self.path), overrides=self.overrides, **{"threads": threads(), **self.options})

    @contextmanager
    def opened(self) -> Iterator[LlamaCppEngine]:
        """One process for all calls, while it is entered. Raises RopeconvError where llama.cpp cannot load the file."""
        with Process(self.load) as self.process:
            try:
                yield self
            finally:
                self.process = None

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress | None = None) -> Tensor:
        import numpy as np

        with scratch() as folder:
            out = folder / "logits.npy"
            self._ask(LogitsJob(list(ids), list(kept), str(out)), Done, (progress or Progress()).advance)
            return np.load(out)

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        import numpy as np

        losses = self._ask(LossesJob(list(ids), list(targets)), LossesAnswer, (progress or Progress()).advance)
        return TokenLosses(np.frombuffer(losses.loss), np.frombuffer(losses.right, bool))

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        return self._ask(Generate(list(ids), count), TokensJob).tokens

    def _ask(self, job: Job, kind: type[T], advance: Callable[[int], None] = lambda count: None) -> T:
        if self.process is not None:
            return self.process.ask(job, kind, advance)
        with Process(self.load) as process:
            return process.ask(job, kind, advance)


def threads() -> int:
    """The threads of the CPU: OMP_NUM_THREADS where it is set, otherwise one for each core of this process."""
    number = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(number) if number.isdecimal() and int(number) else cores()


def runtime() -> str:
    """Name and version of llama.cpp; without the version where it is not installed."""
    try:
        return f"llama.cpp (llama-cpp-python {version('llama-cpp-python')})"
    except PackageNotFoundError:
        return "llama.cpp"


LONGEST = 300.0
"""Seconds without an answer until a file is given up; 100 GB load in some seconds, from a network disk in tens."""


def available() -> bool:
    """Whether llama.cpp is installed."""
    return find_spec("llama_cpp") is not None


def why_not_run(path: Path) -> tuple[str, str]:
    """Why llama.cpp cannot run a file, and why that is not known; both are empty where it decodes five tokens.

    It decodes four and one, which it may compute in different ways. Weights are mapped, and all are read twice. A file
    larger than the memory is only loaded, without its weights. Without an answer for `LONGEST` seconds, a file that was
    not loaded counts as failed, another one as not tested.
    """
    import numpy as np

    size = path.stat().st_size
    load = Load(path=str(path), threads=threads(), batch=4, cache="f16", plain=False, repack=False)
    process = Process(load, LONGEST)
    try:
        with process:
            if size > _memory():
                return "", f"the file ({human(size)}) is larger than the memory, so llama.cpp only loaded it"
            tokens = [token % process.loaded.vocabulary for token in range(1, 7)]
            losses = process.ask(LossesJob(tokens, [4, 5]), LossesAnswer)
    except LlamaCppError as problem:
        if problem.words:
            return problem.words, ""
        if "loaded" in vars(process):
            return "", f"llama.cpp loaded the file and decoded no five tokens within {LONGEST:g} seconds"
        return f"it did not load within {LONGEST:g} seconds", ""
    if np.isnan(np.frombuffer(losses.loss)).any():
        return "it computes NaN, as it does from weights that are too large for f16", ""
    return "", ""


def _memory() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def overrides(schedule: Schedule, arch: str) -> dict[str, Override] | None:
    """The key overrides with which llama.cpp computes a schedule; None where keys cannot express it.

    arch: the GGUF architecture, with which the keys begin.
    """
    form, attention_factor = schedule.form, schedule.attention_factor
    theta_key = find_arch(arch, assumed=True).theta_key
    if not isinstance(form, (Plain, InterpolatedForm, Yarn)):
        return None
    values: dict[str, Override] = {theta_key: ("float", form.theta), "context_length": ("int", schedule.context)}
    if isinstance(form, Plain):
        values["rope.scaling.type"] = ("str", "none")
    else:
        values["rope.scaling.type"] = ("str", form.kind)
        values["rope.scaling.factor"] = ("float", form.factor)
    if isinstance(form, Yarn):
        if (form.beta_fast, form.beta_slow, form.truncate) != (32.0, 1.0, True):
            return None
        values["rope.scaling.original_context_length"] = ("int", form.original_context)
        attention_factor /= 1 + 0.1 * math.log(form.factor)
    values["rope.scaling.attn_factor"] = ("float", attention_factor)
    return {f"{arch}.{key}": value for key, value in values.items()}
