"""Case, a sequence that a model reads; Observation, a number that was measured with it; and what a journal keeps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats.journal import Kind, Line

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Case:
    """A sequence of tokens that every row reads, and the tokens of it that are predicted.

    measure: its name. column: tokens of the sequence, or what else the table has its columns by. document: number of
    the text that it is from. window: number of the place, or of the sample; cases of different columns with the same
    document, window and depth have the same targets. ids: int32 [tokens]. targets: rising indices into `ids`, from 1
    on. depth: where a fact stands, from 0 (the beginning) to 1; None for measures without one. answer: what
    the targets say, of measures that can be run by generating; empty for others. generate: how many tokens are
    generated behind those before the first target, instead of one pass over all; 0 for the pass.
    """

    measure: str
    column: int
    document: int
    window: int
    ids: NDArray[np.int32]
    targets: NDArray[np.int32]
    depth: float | None = None
    answer: str = field(default="", compare=False)
    generate: int = 0

    @cached_property
    def digest(self) -> str:
        """sha256 over the measure, the tokens, the targets, and how many tokens are generated."""
        name = f"{self.measure} {self.generate}" if self.generate else self.measure
        parts = (name.encode(), self.ids.astype("<i4").tobytes(), self.targets.astype("<i4").tobytes())
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()


@dataclass(frozen=True)
class Observation:
    """A number measured in one case for one row.

    measure: its name. metric: what was measured: "loss" in nats per token, "accuracy" as a share of tokens, "log_prob"
    in nats per token. column, document, window, depth: as in Case; a case may give several columns. value: the number.
    weight: how many tokens it is a mean over, where cases of one column differ in that.
    """

    measure: str
    metric: str
    column: int
    document: int
    window: int
    value: float
    depth: float | None = None
    weight: int = 1

    @property
    def pair(self) -> tuple[Any, ...]:
        """What two rows have to share for their numbers to be paired."""
        return self.measure, self.metric, self.column, self.document, self.window, self.depth


class EvalLine(Line, frozen=True):
    """One case for one row, in the journal. seconds: it took. observations: what was measured.

    Document and window of an observation are numbers of the run that wrote it; another run with more texts has others.
    """

    seconds: float
    observations: list[Observation]


EVAL = Kind("eval", 3, EvalLine)
