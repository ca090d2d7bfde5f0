"""Losses of schedules on windows of text, and races between two schedules.

All passes are kept in a journal. A search with a seed always takes the same steps, so a killed one
begins again and reads the passes from the journal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...engines.engine import Engine
from ...errors import BadSource, NotFinite
from ...formats.disk import text_digest
from ...formats.journal import Journal, JournalKind, Line
from ...rope.lengths import format_tokens
from ...rope.schedule import Schedule
from ..cases import Case, EvaluationSizes
from ..measures.retrieval import Passkey
from ..result import FEWEST
from ..statistics import Sample, codes
from ..texts import TextDocument, Texts, window_ends
from .result import Candidate, TuningRow, WindowMeasurement

if TYPE_CHECKING:
    from ..runners.checkpoint import CheckpointRunner


class PassLine(Line, frozen=True):
    """A pass, in the journal. key: of what was computed. numbers: that it gave. seconds: that it
    took.
    """

    numbers: list[float]
    seconds: float = 0.0


TUNE = JournalKind("tune", 2, PassLine)


@dataclass(frozen=True)
class Passes:
    """The passes of a search. journal: of earlier ones, or None. by: what computes, such as runtime
    and precision.
    """

    journal: Journal[PassLine] | None = None
    by: str = ""

    def line(self, parts: Iterable[str], compute: Callable[[], Iterable[float]]) -> PassLine:
        """The pass of a key, computed unless the journal has it; then it is on the disk.

        parts: those of the key. compute: gives finite numbers.
        """
        key = text_digest(self.by, *parts)
        line = self.journal.lines.get(key) if self.journal is not None else None
        if line is None:
            begin = time.perf_counter()
            numbers = [float(value) for value in compute()]
            line = PassLine(key, numbers, time.perf_counter() - begin)
            if self.journal is not None:
                self.journal.add(line)
        return line


@dataclass(frozen=True)
class Price:
    """The weights of `beyond + inside * inside_loss + needle * needle_loss`, in nats per token.

    inside: of the loss inside the trained context. needle: of the loss of hidden numbers.
    """

    inside: float = 0.3
    needle: float = 0.0


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a schedule on one window, in nats.

    tokens: of each target, float64. beyond: index of the first one beyond the trained context.
    needle: the mean over the digits of the hidden number; 0 without one.
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
        """The loss to minimise."""
        return self.beyond_loss + price.inside * self.inside_loss + price.needle * self.needle


@dataclass
class Scorer:
    """Reads windows with schedules, each once.

    runner: patches a schedule into the model. windows: at least one. by_window: losses by schedule
    and number of the window. seconds: of each pass.
    """

    runner: CheckpointRunner
    windows: Sequence[TextWindow]
    price: Price
    passes: Passes = field(default_factory=Passes)
    by_window: dict[tuple[str, int], Losses] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def losses(self, schedule: Schedule, count: int | None = None) -> list[Losses]:
        """The losses of a schedule on the first `count` windows, by default on all of them."""
        numbers = range(len(self.windows) if count is None else min(count, len(self.windows)))
        missing = [number for number in numbers if (schedule.digest, number) not in self.by_window]
        if missing:
            with self.runner.patched(schedule) as engine:
                for number in missing:
                    window = self.windows[number]
                    parts = ("loss", schedule.digest, window.digest)
                    line = self.passes.line(parts, partial(_read, engine, window))
                    *tokens, needle = line.numbers
                    self.seconds.append(line.seconds)
                    self.by_window[schedule.digest, number] = Losses(
                        np.array(tokens), window.beyond, needle
                    )
        return [self.by_window[schedule.digest, number] for number in numbers]

    def values(self, schedule: Schedule, count: int | None = None) -> NDArray[np.float64]:
        """The loss to minimise on each of the first `count` windows, by default on all of them."""
        return np.array([losses.value(self.price) for losses in self.losses(schedule, count)])

    def difference(self, schedule: Schedule, other: Schedule, count: int | None = None) -> Sample:
        """Paired differences of the loss to minimise, one per window; below 0 is better. count: as
        in `losses`.
        """
        values = self.values(schedule, count) - self.values(other, count)
        return Sample(
            values, np.ones(len(values)), np.zeros(len(values), np.int64), np.arange(len(values))
        )

    def race(self, schedule: Schedule, best: Schedule) -> Sample:
        """The difference of a schedule to the best one so far. It ends early where it is
        significantly worse.
        """
        for count in range(min(FEWEST, len(self.windows)), len(self.windows) + 1):
            difference = self.difference(schedule, best, count)
            if difference.mean > 0 and difference.decided:
                break
        return difference


def _read(engine: Engine, window: TextWindow) -> list[float]:
    """The losses of the targets of a window, then that of its hidden number, 0 without one."""

    def losses(case: Case) -> NDArray[np.float64]:
        return engine.token_losses(case.ids.tolist(), case.targets.tolist()).loss

    tokens = losses(window.text)
    needle = 0.0 if window.needle is None else float(losses(window.needle).mean())
    if not (np.isfinite(tokens).all() and math.isfinite(needle)):
        raise NotFinite("the model gives NaN or infinite logits; give --dtype float32 or bfloat16")
    return [*np.asarray(tokens, np.float64).tolist(), needle]


BLOCKS = 16
"""Points of a curve by position."""
Part = Callable[[Losses], float]


def rows(
    scorer: Scorer, candidates: Sequence[Candidate], reference: str, seed: int
) -> list[TuningRow]:
    """Rows of candidates with different names.

    scorer: of held-out windows. reference: name of the candidate that the others are compared with.
    seed: of the bootstrap between documents.
    """
    losses = {candidate.name: scorer.losses(candidate.schedule) for candidate in candidates}
    parts: dict[str, Part] = {
        "beyond": lambda losses: losses.beyond_loss,
        "inside": lambda losses: losses.inside_loss,
        "total": lambda losses: losses.value(scorer.price),
    }
    if scorer.windows[0].needle is not None:
        parts["needle"] = lambda losses: losses.needle
    edges = blocks(scorer.windows[0])
    return [
        TuningRow(
            name=row.name,
            recipe=row.recipe.to_dict() if row.recipe else None,
            curve=[
                float(np.mean([window.tokens[a:b].mean() for window in losses[row.name]]))
                for a, b in edges
            ],
            **{
                part: measurement(scorer.windows, losses[row.name], losses[reference], of, seed)
                for part, of in parts.items()
            },
        )
        for row in candidates
    ]


def blocks(window: TextWindow) -> list[tuple[int, int]]:
    """First and last + 1 of the targets of each point of a curve; no point has targets on both
    sides of the trained context.
    """
    count = len(window.text.targets)
    split = window.beyond
    edges = [
        *np.linspace(0, split, BLOCKS // 2 + 1).astype(int),
        *np.linspace(split, count, BLOCKS // 2 + 1).astype(int),
    ]
    return [(int(a), int(b)) for a, b in pairwise(edges) if b > a]


def measurement(
    windows: Sequence[TextWindow],
    losses: Sequence[Losses],
    reference: Sequence[Losses],
    part: Part,
    seed: int,
) -> WindowMeasurement:
    """A part of the losses of a row, and its paired difference to the reference; none where that is
    the same.

    seed: of the bootstrap.
    """
    values, others = (np.array([part(window) for window in row]) for row in (losses, reference))
    if losses is reference:
        return WindowMeasurement(value=float(values.mean()))
    places = [(window.text.document, window.text.window) for window in windows]
    sample = Sample(
        values - others,
        np.ones(len(values)),
        codes(document for document, _ in places),
        codes(places),
        seed,
    )
    return WindowMeasurement(
        value=float(values.mean()),
        difference=sample.mean,
        error=sample.error,
        margin=sample.margin,
        clusters=sample.count,
    )


HELD_OUT = 3
"""One of so many texts, or of so many parts of a text, is held out."""
DEPTHS = 5


@dataclass(frozen=True, eq=False)
class TextWindow:
    """A window of text.

    text: the sequence with its targets. beyond: index of the first target beyond the trained
    context. needle: a sequence of the same length with a hidden number, whose digits are the
    targets; None without.
    """

    text: Case
    beyond: int
    needle: Case | None = None

    @property
    def digest(self) -> str:
        """The digest of both sequences."""
        return f"{self.text.digest} {self.needle.digest if self.needle else ''}"


def split(texts: Texts, context: int) -> tuple[Texts, Texts, str]:
    """Texts to search with, held-out texts, and a note about these.

    With enough texts of `context` tokens every third one is held out, otherwise the last third of
    each. Raises BadSource where there is not enough text for both.
    """
    room = context - len(texts.prefix)
    long = [document for document in texts.documents if len(document.ids) >= room]

    def of(documents: Iterable[TextDocument]) -> Texts:
        return replace(texts, documents=tuple(documents))

    if len(long) >= HELD_OUT:
        held = long[HELD_OUT - 1 :: HELD_OUT]
        others = (document for document in long if document not in held)
        return of(others), of(held), f"{len(held)} of {len(long)} texts are held out"
    ends = [len(document.ids) * (HELD_OUT - 1) // HELD_OUT for document in texts.documents]
    search = [
        replace(document, ids=document.ids[:end])
        for document, end in zip(texts.documents, ends, strict=True)
    ]
    held = [
        replace(document, ids=document.ids[end:])
        for document, end in zip(texts.documents, ends, strict=True)
    ]
    most = max(len(document.ids) for document in held)
    if most < room:
        raise BadSource(
            f"the held-out third of the text has {most:,} tokens, and a window {room:,}; give a"
            f" longer --text, {HELD_OUT} texts of that length, or a --context up to"
            f" {format_tokens(most + len(texts.prefix))}"
        )
    fits = [len(document.ids) >= room for document in held]
    note = (
        "the last third of the text is held out, so errors do not cover the difference between"
        " texts"
    )
    return of(compress(search, fits)), of(compress(held, fits)), note


def windows(texts: Texts, sizes: EvaluationSizes, needles: bool = False) -> list[TextWindow]:
    """The windows of texts, of which there may be fewer in short texts.

    sizes: one length, and how many targets are inside the trained context and as many beyond it.
    needles: whether each window also has a hidden number.
    """
    context = sizes.longest
    first = max(len(texts.prefix), 1)
    split = min(sizes.trained, context)
    inside, beyond = (_spread(*ends, sizes.targets) for ends in ((first, split), (split, context)))
    targets = np.concatenate([inside, beyond])
    hidden = list(Passkey().cases(texts, replace(sizes, depths=DEPTHS))) if needles else []
    result = []
    for number, (document, end) in enumerate(window_ends(texts, sizes, context)):
        text = Case(
            "tune", context, document, number, texts.window(document, end, context), targets
        )
        needle = hidden[number * DEPTHS + number % DEPTHS] if needles else None
        result.append(TextWindow(text, len(inside), needle))
    return result


def _spread(first: int, last: int, count: int) -> np.ndarray:
    """`count` indices from `first` to below `last` at even distances, or all of them."""
    if last - first <= count:
        return np.arange(first, last, dtype=np.int32)
    return np.linspace(first, last - 1, count).round().astype(np.int32)
