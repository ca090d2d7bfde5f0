"""Case, a sequence that a model reads; Observation, a number that was measured with it; and what a journal keeps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError
from ..formats.journal import JournalKind, Line
from ..rope.lengths import format_tokens, parse_tokens

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
    weight: how many tokens it is a mean over, where cases of one column differ in that. values: by target, for a
    measure that chooses among them later.
    """

    measure: str
    metric: str
    column: int
    document: int
    window: int
    value: float
    depth: float | None = None
    weight: int = 1
    values: tuple[float, ...] = ()

    @property
    def pair(self) -> tuple[object, ...]:
        """What two rows have to share for their numbers to be paired."""
        return self.measure, self.metric, self.column, self.document, self.window, self.depth


class EvalLine(Line, frozen=True):
    """One case for one row, in the journal. seconds: it took. observations: what was measured.

    Document and window of an observation are numbers of the run that wrote it; another run with more texts has others.
    """

    seconds: float
    observations: list[Observation]


EVAL = JournalKind("eval", 3, EvalLine)


@dataclass(frozen=True)
class Metric:
    """A kind of number.

    title: in tables and plots. decimals: that are shown. factor: that is shown per unit. unit: behind a number in
    sentences. share: whether it is a share of answers, with Wilson's interval. rising: whether more is better.
    """

    title: str
    decimals: int = 3
    factor: float = 1.0
    unit: str = ""
    share: bool = False
    rising: bool = True

    def value(self, number: float) -> str:
        """A number of this kind for a table."""
        return f"{self.factor * number:.{self.decimals}f}"

    def difference(self, number: float) -> str:
        """A difference with its sign; +0 for one that is rounded to nothing."""
        return f"{self.factor * number:+.{self.decimals}f}"

    def error(self, number: float) -> str:
        """A standard error, with one digit that counts where it would be rounded to nothing."""
        shown = self.factor * number
        return f"{shown:.1g}" if 0 < shown < 0.5 * 10**-self.decimals else self.value(number)


METRICS = {
    "loss": Metric("loss in nats per token", unit="nat", rising=False),
    "accuracy": Metric("accuracy in %", decimals=0, factor=100, unit="%", share=True),
    "exact": Metric("exact match in %", decimals=0, factor=100, unit="%", share=True),
    "log_prob": Metric("log-probability of the answer in nats per token", decimals=2, unit="nat"),
}


def metric_of(name: str) -> Metric:
    """The metric of a name; one that is not known is shown under its name, and more is taken as better."""
    return METRICS.get(name) or Metric(name)


@dataclass(frozen=True)
class EvaluationSizes:
    """The sizes of an evaluation.

    lengths: of the sequences, in tokens, rising. trained: the trained context in tokens. windows: sequences of each
    length. targets: tokens at the end of each that are predicted. depths: places of a fact in a text. seed: of random
    choices. stride: tokens by which a sliding window moves. generate: whether answers are generated instead of
    compared token by token. chat: whether questions are put as messages in the chat template of the model.
    """

    lengths: tuple[int, ...]
    trained: int
    windows: int = 8
    targets: int = 256
    depths: int = 5
    seed: int = 0
    stride: int = 256
    generate: bool = False
    chat: bool = False

    def __post_init__(self) -> None:
        for name in ("windows", "targets", "depths", "stride"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}; give a positive number")
        if not 0 <= self.seed < 1 << 31:
            raise UsageError(f"--seed is {self.seed}; give a number from 0 to {(1 << 31) - 1:,}")
        if self.chat and not self.generate:
            raise UsageError("--chat asks a model to answer, which needs --generate; give both")

    @property
    def longest(self) -> int:
        """The longest length in tokens."""
        return self.lengths[-1]


def parse_lengths(text: str, trained: int) -> tuple[int, ...]:
    """`"1/4T,1T,2T"` or `"8k,32k"` as lengths in tokens, rising and each once; T is the trained context.

    text: as on the command line. trained: in tokens. Raises UsageError and RecipeError for anything else.
    """
    found = set()
    for part in (piece.strip() for piece in text.split(",")):
        if not part.endswith("T"):
            found.add(parse_tokens(part))
            continue
        over, _, under = part[:-1].partition("/")
        try:
            length = round((float(over) if over else 1.0) / (float(under) if under else 1.0) * trained)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise UsageError(
                f"{part!r} is not a length; write it like 1/4T, 2T (T is the trained context) or 32k"
            ) from None
        found.add(parse_tokens(str(length)))
    return tuple(sorted(found))


def in_trained(length: int, trained: int) -> str:
    """A length beside the trained context: `"2T"` for twice that, else as `format_tokens` has it. Both in tokens."""
    whole, rest = divmod(length, trained)
    if not rest:
        return f"{whole}T"
    return f"1/{trained // length}T" if trained % length == 0 and trained <= 64 * length else format_tokens(length)
