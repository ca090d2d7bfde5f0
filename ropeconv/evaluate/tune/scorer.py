"""Scorer: what schedules lose on windows of text, each read once, and races between two of them.

What a search has read is kept in a journal, so that a killed search goes on where it was. A search with a seed is the
same each time, as long as the losses and gradients that it sees are: so it is begun again, and what the journal has is
not computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...engines.engine import Engine
from ...errors import BadSource, NotFinite
from ...formats.disk import text_digest
from ...formats.journal import Journal, JournalKind, Line
from ...rope.lengths import format_tokens
from ...rope.schedule import Schedule
from ..cases import Case, EvaluationSizes, Observation
from ..measures.retrieval import Passkey
from ..result import margin
from ..statistics import differences
from ..texts import TextDocument, Texts, window_ends
from .result import Candidate, TunedRow, WindowMeasurement

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..runners.checkpoint import CheckpointRunner


class PassLine(Line, frozen=True):
    """A pass, in the journal. key: of what was computed. numbers: that it gave. seconds: that it took."""

    numbers: list[float]
    seconds: float = 0.0


TUNE = JournalKind("tune", 2, PassLine)


@dataclass(frozen=True)
class Passes:
    """What passes gave. journal: that keeps them; None for none. by: what computes, such as runtime and precision."""

    journal: Journal[PassLine] | None = None
    by: str = ""

    def line(self, what: Iterable[str], compute: Callable[[], Iterable[float]]) -> PassLine:
        """Return a pass when it is on the disk.

        what: is computed, in names and digests. compute: called where the journal does not have it; gives finite
        numbers.
        """
        key = text_digest(self.by, *what)
        line = self.journal.lines.get(key) if self.journal is not None else None
        if line is None:
            begin = time.perf_counter()
            numbers = [float(value) for value in compute()]
            line = PassLine(key, numbers, time.perf_counter() - begin)
            if self.journal is not None:
                self.journal.add(line)
        return line


FEWEST = 4
"""Windows before a race may end."""


@dataclass(frozen=True)
class Price:
    """What a loss is made of: `beyond + inside * inside_loss + needle * needle_loss`, in nats per token.

    inside: weight of the loss inside the trained context. needle: weight of the loss of hidden numbers.
    """

    inside: float = 0.3
    needle: float = 0.0


@dataclass(frozen=True, eq=False)
class Losses:
    """What a schedule loses on one window, in nats.

    tokens: of each target of the text, float64. beyond: index of the first one beyond the trained context. needle: the
    mean over the digits of the hidden number; 0 without one.
    """

    tokens: NDArray[np.float64]
    beyond: int
    needle: float = 0.0

    @property
    def inside_loss(self) -> float:
        """The mean loss inside the trained context, in nats per token."""
        return float(self.tokens[: self.beyond].mean()) if self.beyond else 0.0

    @property
    def beyond_loss(self) -> float:
        """The mean loss beyond the trained context, in nats per token."""
        return float(self.tokens[self.beyond :].mean())

    def value(self, price: Price) -> float:
        """The loss that is searched for the least of. price: of its parts."""
        return self.beyond_loss + price.inside * self.inside_loss + price.needle * self.needle


@dataclass
class Scorer:
    """Reads windows with schedules, and remembers what it has read.

    runner: patches a schedule into the model. windows: at least one. price: of the parts of a loss. passes: of earlier
    runs. seen: what was read. seconds: of each pass.
    """

    runner: CheckpointRunner
    windows: Sequence[TextWindow]
    price: Price
    passes: Passes = field(default_factory=Passes)
    seen: dict[tuple[str, int], Losses] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def losses(self, schedule: Schedule, count: int | None = None) -> list[Losses]:
        """What a schedule loses on the first `count` windows, by default on all of them."""
        numbers = range(len(self.windows) if count is None else min(count, len(self.windows)))
        missing = [number for number in numbers if (schedule.digest, number) not in self.seen]
        if missing:
            with self.runner.patched(schedule) as engine:
                for number in missing:
                    window = self.windows[number]
                    what = ("loss", schedule.digest, window.digest)
                    line = self.passes.line(what, partial(_read, engine, window))
                    *tokens, needle = line.numbers
                    self.seconds.append(line.seconds)
                    self.seen[schedule.digest, number] = Losses(np.array(tokens), window.beyond, needle)
        return [self.seen[schedule.digest, number] for number in numbers]

    def values(self, schedule: Schedule, count: int | None = None) -> NDArray[np.float64]:
        """The losses that are searched for the least of, per window; infinite where the model gives no number.

        schedule: to read with. count: of windows, by default all.
        """
        return np.array([one.value(self.price) for one in self.losses(schedule, count)])

    def race(self, schedule: Schedule, best: Schedule) -> Difference:
        """How a schedule compares with the best one so far. It ends early where it is worse beyond its error."""
        for count in range(min(FEWEST, len(self.windows)), len(self.windows) + 1):
            found = Difference(self.values(schedule, count) - self.values(best, count))
            if found.mean > 0 and found.decided:
                break
        return found


def _read(engine: Engine, window: TextWindow) -> list[float]:
    """The losses of the targets of a window, then that of its hidden number, 0 without one."""
    case, needle = window.text, 0.0
    tokens = engine.token_losses(case.ids.tolist(), case.targets.tolist()).loss
    if window.needle is not None:
        asked = window.needle
        needle = float(engine.token_losses(asked.ids.tolist(), asked.targets.tolist()).loss.mean())
    if not (np.isfinite(tokens).all() and math.isfinite(needle)):
        raise NotFinite("the model gives NaN or infinite logits; give --dtype float32 or bfloat16")
    return [*np.asarray(tokens, np.float64).tolist(), needle]


@dataclass(frozen=True, eq=False)
class Difference:
    """Paired differences of losses, one per window, in nats per token: below 0 is better. values: float64 [windows]."""

    values: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(self.values.mean())

    @cached_property
    def error(self) -> float:
        """The standard error of the mean; infinite for a single window."""
        count = len(self.values)
        return float(self.values.std(ddof=1) / math.sqrt(count)) if count > 1 else math.inf

    @property
    def decided(self) -> bool:
        """Whether the mean is significant."""
        limit = margin(self.error, len(self.values))
        return limit is not None and abs(self.mean) > limit


BLOCKS = 16
"""Points of a curve by position."""
Part = Callable[[Losses], float]


def rows(scorer: Scorer, candidates: Sequence[Candidate], reference: str, seed: int) -> list[TunedRow]:
    """Rows of candidates.

    scorer: of held-out windows. candidates: with different names. reference: name of the one that others are compared
    with. seed: of the bootstrap between documents.
    """
    losses = {one.name: scorer.losses(one.schedule) for one in candidates}
    price = scorer.price
    parts: dict[str, Part] = {
        "beyond": lambda one: one.beyond_loss,
        "inside": lambda one: one.inside_loss,
        "total": lambda one: one.value(price),
    }
    if scorer.windows[0].needle is not None:
        parts["needle"] = lambda one: one.needle
    edges = blocks(scorer.windows[0])
    return [
        TunedRow(
            name=row.name,
            recipe=row.recipe.to_dict() if row.recipe else None,
            curve=[float(np.mean([one.tokens[a:b].mean() for one in losses[row.name]])) for a, b in edges],
            **{
                part: measured(scorer.windows, losses[row.name], losses[reference], of, seed, row.name == reference)
                for part, of in parts.items()
            },
        )
        for row in candidates
    ]


def blocks(window: TextWindow) -> list[tuple[int, int]]:
    """First and last + 1 of the targets of each point of a curve, on one side of the trained context each."""
    count, split = len(window.text.targets), window.beyond
    edges = [
        *np.linspace(0, split, BLOCKS // 2 + 1).astype(int),
        *np.linspace(split, count, BLOCKS // 2 + 1).astype(int),
    ]
    return [(int(a), int(b)) for a, b in pairwise(edges) if b > a]


def measured(
    windows: Sequence[TextWindow],
    own: Sequence[Losses],
    reference: Sequence[Losses],
    part: Part,
    seed: int,
    itself: bool,
) -> WindowMeasurement:
    """A part of the losses of a row, and its paired difference to the reference.

    windows: that were read. own, reference: losses of both. part: of them. seed: of the bootstrap. itself: whether the
    row is the reference.
    """
    ours, theirs = (_observations(windows, losses, part) for losses in (own, reference))
    mean = float(np.mean([one.value for one in ours]))
    if itself:
        return WindowMeasurement(value=mean)
    found = differences({one.pair: one for one in ours}, {one.pair: one for one in theirs}, seed)
    assert found is not None
    return WindowMeasurement(
        value=mean, difference=found.mean, error=found.error, margin=margin(found.error, found.count),
        clusters=found.count,
    )  # fmt: skip


def _observations(windows: Sequence[TextWindow], losses: Sequence[Losses], part: Part) -> list[Observation]:
    return [
        Observation("tune", "loss", window.text.column, window.text.document, window.text.window, part(one))
        for window, one in zip(windows, losses, strict=True)
    ]


HELD_OUT = 3
"""One text of so many, or one part of a text, is kept from the search."""
DEPTHS = 5


@dataclass(frozen=True)
class Size:
    """What a search reads.

    context: tokens of a window. trained: the trained context in tokens. windows: how many. targets: tokens that are
    predicted in each, inside the trained context and beyond it alike. needles: whether each window also has a number
    hidden in the text, which is asked for. seed: of places and numbers.
    """

    context: int
    trained: int
    windows: int
    targets: int
    needles: bool = False
    seed: int = 0


@dataclass(frozen=True, eq=False)
class TextWindow:
    """A piece of text.

    text: the sequence with its targets. beyond: index of the first of them beyond the trained context. needle: the same
    length of text with a hidden number, whose digits are the targets; None without.
    """

    text: Case
    beyond: int
    needle: Case | None = None

    @property
    def digest(self) -> str:
        """Of everything that is read and predicted."""
        return f"{self.text.digest} {self.needle.digest if self.needle else ''}"


def split(texts: Texts, context: int) -> tuple[Texts, Texts, str]:
    """Texts to search with, texts that are held out, and a sentence about the latter.

    With enough texts of `context` tokens every third one is held out, else the last third of each. texts: all. context:
    tokens of a window. Raises BadSource where there is not enough text for both.
    """
    room = context - len(texts.prefix)
    long = [document for document in texts.documents if len(document.ids) >= room]
    if len(long) >= HELD_OUT:
        held = long[HELD_OUT - 1 :: HELD_OUT]
        rest = [document for document in long if document not in held]
        return _of(texts, rest), _of(texts, held), f"{len(held)} of {len(long)} texts are held out"
    parts = [_cut(document) for document in texts.documents]
    search, held = [first for first, _ in parts], [last for _, last in parts]
    most = max(len(document.ids) for document in held)
    if most < room:
        raise BadSource(
            f"a third of the text is held out, and has {most:,} tokens of the {room:,} of a window; give a longer "
            f"--text, {HELD_OUT} texts of that length, or a --context up to {format_tokens(most + len(texts.prefix))}"
        )
    fits = [len(document.ids) >= room for document in held]
    return (
        _of(texts, [one for one, fit in zip(search, fits, strict=True) if fit]),
        _of(texts, [one for one, fit in zip(held, fits, strict=True) if fit]),
        "the last third of the text is held out, so that errors do not say how other texts differ",
    )


def _cut(document: TextDocument) -> tuple[TextDocument, TextDocument]:
    end = len(document.ids) * (HELD_OUT - 1) // HELD_OUT
    return replace(document, ids=document.ids[:end]), replace(document, ids=document.ids[end:])


def _of(texts: Texts, documents: Sequence[TextDocument]) -> Texts:
    return replace(texts, documents=tuple(documents))


def windows(texts: Texts, size: Size) -> list[TextWindow]:
    """The windows of texts. size: how many, and of what. There may be fewer in short texts."""
    asked = EvaluationSizes(
        (size.context,), size.trained, size.windows, max(1, size.targets), 1 + (DEPTHS - 1) * size.needles, size.seed
    )
    first, split = max(len(texts.prefix), 1), min(size.trained, size.context)
    inside, beyond = (_spread(*ends, size.targets) for ends in ((first, split), (split, size.context)))
    targets = np.concatenate([inside, beyond])
    needles = list(Passkey().cases(texts, asked)) if size.needles else []
    found = []
    for number, (document, end) in enumerate(window_ends(texts, asked, size.context)):
        text = Case("tune", size.context, document, number, texts.window(document, end, size.context), targets)
        needle = needles[number * DEPTHS + number % DEPTHS] if needles else None
        found.append(TextWindow(text, len(inside), needle))
    return found


def _spread(first: int, last: int, count: int) -> np.ndarray:
    """`count` indices from `first` to below `last` at even distances, or all of them."""
    if last - first <= count:
        return np.arange(first, last, dtype=np.int32)
    return np.linspace(first, last - 1, count).round().astype(np.int32)
