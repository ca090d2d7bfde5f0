"""Cases, the sequences that a model reads; observations, the numbers measured with them; and the
lines of a journal.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..formats.journal import JournalKind, Line
from ..rope.lengths import format_tokens, parse_tokens


@dataclass(frozen=True, eq=False)
class Case:
    """A sequence of tokens that every row reads, and the tokens of it that are predicted.

    measure: its name. column: the length in tokens, or another number that heads a column.
    document: number of the text. window: number of the place or sample in it; cases of different
    columns with the same document, window and depth have the same targets. ids: int32 [tokens].
    targets: rising indices into `ids`, from 1 on. depth: place of a fact, from 0 (the beginning) to
    1; None for measures without one. answer: the text of the targets, for measures that can
    generate; otherwise empty. generate: tokens to generate before the first target, instead of one
    pass over all; 0 for the pass.
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
        """sha256 over the tokens, the targets, and how many tokens are generated."""
        parts = (
            str(self.generate).encode(),
            self.ids.astype("<i4").tobytes(),
            self.targets.astype("<i4").tobytes(),
        )
        return hashlib.sha256(
            b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        ).hexdigest()


@dataclass(frozen=True)
class Observation:
    """A number measured in one case for one row.

    measure: its name. metric: what was measured: "loss" in nats per token, "accuracy" as a share of
    tokens, "log_prob" in nats per token. column, document, window, depth: as in Case; a case may
    give several columns. value: the number. weight: how many tokens it is a mean over, where cases
    of one column differ in that. values: by target, for a measure that chooses among them later.
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
        """The key by which the numbers of two rows are paired."""
        return self.measure, self.metric, self.column, self.document, self.window, self.depth


class EvalLine(Line, frozen=True):
    """One case for one row, in the journal. seconds: the time of the pass.

    Document and window of an observation are numbers of the run that wrote it; another run with
    more texts has others.
    """

    seconds: float
    observations: list[Observation]


EVAL = JournalKind("eval", 4, EvalLine)


@dataclass(frozen=True)
class Metric:
    """A kind of number.

    title: in tables and plots. decimals: shown. factor: multiplies a number for display. unit:
    after a number in sentences. share: whether it is a share of answers, with Wilson's interval.
    rising: whether more is better.
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
        """A difference with its sign; +0 for one that rounds to 0."""
        return f"{self.factor * number:+.{self.decimals}f}"

    def error(self, number: float) -> str:
        """A standard error, with one significant digit where it would round to 0."""
        error = self.factor * number
        return f"{error:.1g}" if 0 < error < 0.5 * 10**-self.decimals else self.value(number)


METRICS = {
    "loss": Metric("loss in nats per token", unit="nat", rising=False),
    "accuracy": Metric("accuracy in %", decimals=0, factor=100, unit="%", share=True),
    "exact": Metric("exact match in %", decimals=0, factor=100, unit="%", share=True),
    "log_prob": Metric("log-probability of the answer in nats per token", decimals=2, unit="nat"),
}


def metric_of(name: str) -> Metric:
    """The metric of a name; an unknown one has its name as title, and more is better."""
    return METRICS.get(name) or Metric(name)


@dataclass(frozen=True)
class EvaluationSizes:
    """The sizes of an evaluation.

    lengths: of the sequences, in tokens, rising. trained: the trained context in tokens. windows:
    sequences of each length. targets: tokens predicted at the end of each. depths: places of a fact
    in a text. seed: of random choices. generate: generate answers instead of comparing tokens.
    """

    lengths: tuple[int, ...]
    trained: int
    windows: int = 8
    targets: int = 256
    depths: int = 5
    seed: int = 0
    generate: bool = False

    def __post_init__(self) -> None:
        for name in ("windows", "targets", "depths"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}; give a positive number")
        if not 0 <= self.seed < 1 << 31:
            raise UsageError(f"--seed is {self.seed}; give a number from 0 to {(1 << 31) - 1:,}")

    @property
    def longest(self) -> int:
        """The longest length in tokens."""
        return self.lengths[-1]


def parse_lengths(text: str, trained: int) -> tuple[int, ...]:
    """`"1/4T,1T,2T"` or `"8k,32k"` as lengths in tokens, rising and each once; T is the trained
    context.

    Raises UsageError and RecipeError for other texts.
    """
    lengths = set()
    for part in (piece.strip() for piece in text.split(",")):
        if not part.endswith("T"):
            lengths.add(parse_tokens(part))
            continue
        over, _, under = part[:-1].partition("/")
        try:
            length = round(
                (float(over) if over else 1.0) / (float(under) if under else 1.0) * trained
            )
        except (ValueError, ZeroDivisionError, OverflowError):
            raise UsageError(
                f"{part!r} is not a length; write it like 1/4T, 2T (T is the trained context)"
                " or 32k"
            ) from None
        lengths.add(parse_tokens(str(length)))
    return tuple(sorted(lengths))


def in_trained(length: int, trained: int) -> str:
    """A length in trained contexts, such as `"2T"`, otherwise as `format_tokens` writes it. Both in
    tokens.
    """
    whole, rest = divmod(length, trained)
    if not rest:
        return f"{whole}T"
    return (
        f"1/{trained // length}T"
        if trained % length == 0 and trained <= 64 * length
        else format_tokens(length)
    )
