"""The answers of a runtime to some tokens: a checkpoint, a GGUF file, or a running server.

An observer reads token runs, and returns Answers for each, which can be compared with logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ropeconv.engines.engine import LogProbs, Progress
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec
from ropeconv.engines.transformers.memory import release
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.features import hook
from ropeconv.validate.sampling import TokenRun
from ropeconv.validate.validation import Measures, measure, measure_answers, spread_of

if TYPE_CHECKING:
    from torch import Tensor


class Answers(ABC):
    """The answers of a runtime after the compared tokens of a run."""

    @abstractmethod
    def compare(self, logits: Tensor, rows: slice) -> Measures:
        """Compare the logits of a candidate with the answers to some tokens of the run.

        Args:
            logits: [positions, vocabulary]
            rows: The places of these tokens among the compared ones.
        """


@dataclass(frozen=True)
class FullLogits(Answers):
    """The logits of a model that runs here."""

    logits: Tensor
    """Float32 [positions, vocabulary]."""

    temperature: float
    """Divides logits for the KL: flat logits of a small model have no KL that could be measured."""

    def compare(self, logits: Tensor, rows: slice) -> Measures:
        other = self.logits[rows].to(logits.device)
        # llama.cpp and transformers pad the vocabulary differently
        width = min(logits.shape[-1], other.shape[-1])
        return measure(logits[:, :width], other[:, :width], temperature=self.temperature)


@dataclass(frozen=True)
class NamedLogProbs(Answers):
    """The log-probabilities of the likeliest tokens, as a server gives them."""

    answers: list[LogProbs]

    def compare(self, logits: Tensor, rows: slice) -> Measures:
        answers = self.answers[rows]
        return measure_answers(logits, answers, [-1] * len(answers))


class Observer(ABC):
    """A runtime with a model."""

    runtime: str
    """Its name and version."""

    vocabulary: int = 0
    """How many tokens it knows; 0 where it does not say."""

    longest: int = 0
    """How many tokens it accepts; 0 where it does not say."""

    @abstractmethod
    def read(self, runs: Sequence[TokenRun], progress: Progress) -> list[Answers]:
        """Return the answers to each run, which is over all positions from 0 on."""


class CheckpointObserver(Observer):
    """A folder in the installed transformers, as `from_pretrained` loads it."""

    def __init__(self, folder: Path, at: DeviceSpec, trust: bool, chunk: int) -> None:
        self.engine = TransformersEngine.load(folder, at, trust, chunk)
        self.runtime = self.engine.runtime
        self.vocabulary = self.engine.vocabulary

    def read(self, runs: Sequence[TokenRun], progress: Progress) -> list[Answers]:
        logits = [self.engine.logits(run.ids, run.kept, progress) for run in runs]
        del self.engine  # the source is loaded next, and both may not fit
        release()
        return with_temperature(logits)


class GgufObserver(Observer):
    """A GGUF file in llama.cpp."""

    def __init__(self, path: Path) -> None:
        self.engine = LlamaCppEngine(path)
        self.runtime = self.engine.runtime

    def read(self, runs: Sequence[TokenRun], progress: Progress) -> list[Answers]:
        with self.engine.opened():
            logits = [self.engine.logits(run.ids, run.kept, progress) for run in runs]
        return with_temperature(logits)


class ServerObserver(Observer):
    """A running server."""

    def __init__(self, url: str, model: str) -> None:
        self.server = hook("connect_server")(url, model)
        if self.server.reads_text:  # candidates are told apart by single tokens
            raise RopeconvError(
                f"{self.server.runtime} reads text, and this needs a server that reads tokens; run"
                " vLLM, SGLang or llama-server"
            )
        self.runtime = self.server.runtime
        self.vocabulary = self.server.vocabulary or 0
        self.longest = self.server.length or 0

    def read(self, runs: Sequence[TokenRun], progress: Progress) -> list[Answers]:
        found = []
        for run in runs:
            found.append(NamedLogProbs(self.server.top_log_probs(run.ids, run.kept, progress)))
        return [*found]


def with_temperature(logits: list[Tensor]) -> list[Answers]:
    """Return logits as answers, compared at the temperature of the first run."""
    temperature = spread_of(logits[0])
    return [FullLogits(rows, temperature) for rows in logits]
