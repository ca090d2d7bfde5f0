"""speed: tokens per second and memory of one pass over each length."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ropeconv.engines.engine import Engine, TokenLosses
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.inspection.memory.machine import GIB

from ..cases import Case, EvaluationSizes, Observation
from ..texts import Texts, Tokenizer, window_ends
from .measure import Measure, register

if TYPE_CHECKING:
    import torch

WARM_UP = 64
"""Tokens that are read before the clock starts."""
PASSES = 3
"""Most passes over each length."""


@register
class Speed(Measure):
    """How many tokens a second the engine of a row reads in one pass, and the memory of it.

    The memory is the most that the GPU had in use, and on a CPU the most that the process had
    (Linux). It is measured where this process runs the model, in transformers.
    """

    name = "speed"
    summary = "tokens per second, and the memory of a pass, at each length"
    metrics = ("tokens_per_second", "memory")
    is_repeatable = False
    is_tested = False

    def cases(self, texts: Texts, sizes: EvaluationSizes) -> Iterator[Case]:
        """Yield at most PASSES sequences of each length, whose last token is predicted."""
        ends = window_ends(texts, sizes, apart=1)[:PASSES]
        for window, (document, end) in enumerate(ends):
            for length in sizes.lengths:
                yield Case(
                    measure=self.name,
                    column=length,
                    document=document,
                    window=window,
                    ids=texts.window(document, end, length),
                    targets=np.array([length - 1], np.int32),
                )

    def observe(self, case: Case, losses: TokenLosses) -> list[Observation]:
        raise NotImplementedError(self.name)

    def run(self, row: str, case: Case, engine: Engine, tokenizer: Tokenizer) -> list[Observation]:
        """Run a sequence once, and return its tokens per second, and the most memory in use.

        Args:
            row: The name of the row.
            case: The sequence.
            engine: The loaded model.
            tokenizer: Not used.
        """
        # a first short pass, since kernels are compiled and memory is allocated in it
        ids = case.ids.tolist()
        engine.token_losses(ids[:WARM_UP], [min(WARM_UP, len(ids)) - 1])

        device = None
        if isinstance(engine, TransformersEngine):
            device = engine.model.get_input_embeddings().weight.device
            reset_peak(device)
        begun = time.perf_counter()
        engine.token_losses(ids, case.targets.tolist())
        seconds = time.perf_counter() - begun

        values = {"tokens_per_second": len(ids) / max(seconds, 1e-9)}
        if device is not None:
            peak = peak_bytes(device)
            if peak:
                values["memory"] = peak / GIB
        return [
            Observation(
                measure=self.name,
                metric=metric,
                column=case.column,
                document=case.document,
                window=case.window,
                value=value,
            )
            for metric, value in values.items()
        ]


def reset_peak(device: "torch.device", process: Path = Path("/proc/self")) -> None:
    """Forget the most memory that was in use before.

    Args:
        device: Where the model is.
        process: Where Linux describes this process.
    """
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        # proc_pid_clear_refs(5): 5 sets the peak (VmHWM) to what is in use now
        with (process / "clear_refs").open("r+") as file:
            file.write("5")
    except OSError:  # not Linux, or a container that forbids it: the peak since the start
        pass


def peak_bytes(device: "torch.device", process: Path = Path("/proc/self")) -> int:
    """Return the most memory that was in use, in bytes; 0 where that is not known.

    Args:
        device: Where the model is.
        process: Where Linux describes this process.
    """
    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type != "cpu":
        return 0
    try:
        status = (process / "status").read_text("utf-8")
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):  # the most memory in use: "VmHWM:   123456 kB"
            _, kilobytes, _ = line.split()
            return int(kilobytes) * 1024
    return 0
