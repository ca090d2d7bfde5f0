"""Cases, the sequences that a model reads, and observations, the numbers measured with them.

`EvalLine` is the line of a journal with both.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ropeconv.errors import UsageError
from ropeconv.formats.journal import JournalKind, Line
from ropeconv.rope.lengths import format_tokens, parse_tokens

SERVER = "server"
"""The device of an evaluation whose rows are models on servers."""


@dataclass(frozen=True, eq=False)
class Case:
    """A sequence of tokens that every row reads, and the tokens of it that are predicted."""

    measure: str
    """The name of the measure."""

    column: int
    """The length in tokens, or another number that heads a column."""

    document: int
    """The number of the text."""

    window: int
    """The number of the place or sample in the text.

    Cases of different columns with the same document, window and depth have the same targets.
    """

    ids: NDArray[np.int32]
    """int32 [tokens]"""

    targets: NDArray[np.int32]
    """Rising indices into `ids`, from 1 on."""

    depth: float | None = None
    """The place of a fact, from 0 (the beginning) to 1; None for measures without one."""

    answer: str = field(default="", compare=False)
    """The text of the targets, for measures that can generate; otherwise empty."""

    generate: int = 0
    """Tokens to generate before the first target; 0 for one pass over all instead."""

    @cached_property
    def digest(self) -> str:
        """sha256 over the tokens, the targets, and how many tokens are generated."""
        digest = hashlib.sha256()
        for part in (
            str(self.generate).encode(),
            self.ids.astype("<i4").tobytes(),
            self.targets.astype("<i4").tobytes(),
        ):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()


@dataclass(frozen=True)
class Observation:
    """A number measured in one case for one row."""

    measure: str
    """The name of the measure."""

    metric: str
    """The measured quantity, a key of METRICS."""

    column: int
    """As in Case; a case may give several columns."""

    document: int
    """As in Case."""

    window: int
    """As in Case."""

    value: float
    """The number."""

    depth: float | None = None
    """As in Case."""

    weight: int = 1
    """How many tokens it is a mean over, where cases of one column differ in that."""

    values: tuple[float, ...] = ()
    """A number for each target, for a measure that chooses among them later."""

    sequence: int | None = None
    """The window of the case, where `window` is the number of a question of several in it.

    None where they are the same.
    """

    @property
    def pair(self) -> tuple[object, ...]:
        """The key by which the numbers of two rows are paired."""
        return self.measure, self.metric, self.column, self.document, self.window, self.depth


class EvalLine(Line, frozen=True):
    """One case for one row, in the journal.

    Document and window of an observation are numbers of the run that wrote it; another run with
    more texts has others.
    """

    seconds: float
    """The time of the pass."""

    observations: list[Observation]


EVAL = JournalKind("eval", 4, EvalLine)


@dataclass(frozen=True)
class EvaluationSizes:
    """The sizes of an evaluation."""

    lengths: tuple[int, ...]
    """The lengths of the sequences in tokens, rising."""

    trained: int
    """The trained context in tokens."""

    windows: int = 8
    """Sequences of each length."""

    targets: int = 256
    """Tokens predicted at the end of each sequence."""

    depths: int = 5
    """Places of a fact in a text."""

    seed: int = 0
    """The seed of random choices."""

    generate: bool = False
    """Whether to generate answers instead of comparing tokens."""

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
    """Parse lengths such as `"1/4T,1T,2T"` or `"8k,32k"`.

    Args:
        text: The lengths; T is the trained context.
        trained: The trained context in tokens.

    Returns:
        The lengths in tokens, rising and each once.

    Raises:
        UsageError: The text is not a list of lengths.
        RecipeError: A length is out of bounds.
    """
    lengths = set()
    for part in text.split(","):
        part = part.strip()
        if not part.endswith("T"):  # a number of tokens, such as 32k
            lengths.add(parse_tokens(part))
            continue

        # a multiple of the trained context: "T", "2T", "1.5T" or "1/4T"
        numerator, _, denominator = part[:-1].partition("/")
        try:
            multiple = float(numerator or 1) / float(denominator or 1)
            length = round(multiple * trained)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise UsageError(
                f"{part!r} is not a length; write it like 1/4T, 2T (T is the trained context)"
                " or 32k"
            ) from None
        lengths.add(parse_tokens(str(length)))
    return tuple(sorted(lengths))


def in_trained(length: int, trained: int) -> str:
    """Return a length in trained contexts, such as `"2T"` or `"1/4T"`, for display.

    A length that is neither a multiple nor a part is shown in tokens.

    Args:
        length: The length in tokens.
        trained: The trained context in tokens.
    """
    if length % trained == 0:
        return f"{length // trained}T"
    is_part = trained % length == 0
    is_readable = trained <= 64 * length  # 1/64T at least: 1/2048T says less than 64 tokens
    if is_part and is_readable:
        return f"1/{trained // length}T"
    return format_tokens(length)
