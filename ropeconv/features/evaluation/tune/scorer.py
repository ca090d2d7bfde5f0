"""Losses of schedules on windows of text, and races between two schedules.

`split` holds texts out, `windows` chooses windows in texts, `Scorer` reads them with schedules, and
`rows` makes the table.

All passes are kept in a journal. A search with a seed always takes the same steps, so a killed one
begins again and reads the passes from the journal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ropeconv.bake.proof import FEWEST, FEWEST_DOCUMENTS, Sample, codes
from ropeconv.engines.engine import Engine
from ropeconv.errors import BadSource, NotFinite
from ropeconv.formats.disk import text_digest
from ropeconv.formats.journal import Journal, JournalKind, Line
from ropeconv.rope.lengths import format_tokens
from ropeconv.rope.schedule import Schedule

from ..cases import Case, EvaluationSizes
from ..measures.retrieval import Passkey
from ..texts import TextDocument, Texts, window_ends
from .result import Candidate, TuningRow, WindowMeasurement

if TYPE_CHECKING:
    from ..runners.checkpoint import CheckpointRunner


class PassLine(Line, frozen=True):
    """A pass of the model over one window, as a line of the journal."""

    numbers: list[float]
    """The result: losses by token and that of the hidden number, or a gradient."""

    seconds: float = 0.0
    """How long it took."""


TUNE = JournalKind("tune", 2, PassLine)
"""The kind of journal in which passes are kept."""


@dataclass(frozen=True)
class Passes:
    """The passes of a search, each of which is computed once."""

    journal: Journal[PassLine] | None = None
    """The journal of earlier passes; None to keep none."""

    engine: str = ""
    """The runtime, device and precision that compute them, in one text."""

    def read_or_run(self, key_parts: Iterable[str], run: Callable[[], Iterable[float]]) -> PassLine:
        """Return the numbers of one pass of the model, from the journal or by running it.

        New numbers are added to the journal, so that an interrupted search continues where it was.

        Args:
            key_parts: Texts that the numbers depend on, such as "loss" and the digests of the
                frequencies and of the window. With the engine they make the key in the journal.
            run: Runs the pass, and returns its finite numbers.
        """
        key = text_digest(self.engine, *key_parts)
        if self.journal is not None and key in self.journal.lines:
            return self.journal.lines[key]

        begin = time.perf_counter()
        numbers = [float(value) for value in run()]
        line = PassLine(key, numbers, time.perf_counter() - begin)
        if self.journal is not None:
            self.journal.add(line)
        return line


@dataclass(frozen=True)
class Price:
    """The weights of the total loss: `beyond_loss + inside * inside_loss + needle * needle_loss`.

    Each is the mean loss on some targets in nats per token.
    """

    inside: float = 0.3
    """The weight of the loss inside the trained context."""

    needle: float = 0.0
    """The weight of the loss of hidden numbers."""


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a schedule on one window, in nats."""

    tokens: NDArray[np.float64]
    """The loss of each target, float64 [targets]."""

    inside_count: int
    """The number of targets inside the trained context, which come before those beyond it."""

    needle: float = 0.0
    """The mean loss on the digits of the hidden number (needle); 0 without one."""

    @property
    def inside_loss(self) -> float:
        """The mean loss inside the trained context, in nats per token."""
        if not self.inside_count:
            return 0.0
        return float(self.tokens[: self.inside_count].mean())

    @property
    def beyond_loss(self) -> float:
        """The mean loss beyond the trained context, in nats per token."""
        return float(self.tokens[self.inside_count :].mean())

    def weighted_sum(self, weights: Price) -> float:
        """Return the loss to minimise."""
        return self.beyond_loss + weights.inside * self.inside_loss + weights.needle * self.needle


@dataclass
class Scorer:
    """Runs the model over windows with schedules, each pair of both once."""

    runner: CheckpointRunner
    """Patches a schedule into the model."""

    windows: Sequence[TextWindow]
    """The windows, at least one."""

    weights: Price
    """The weights of the total loss."""

    passes: Passes = field(default_factory=Passes)

    by_window: dict[tuple[str, int], Losses] = field(default_factory=dict)
    """Losses by the digest of the schedule and the number of the window."""

    seconds: list[float] = field(default_factory=list)
    """How long each pass took."""

    def losses(self, schedule: Schedule, count: int | None = None) -> list[Losses]:
        """Return the losses that the model has on parts of the texts (windows) with a schedule.

        Args:
            schedule: The frequencies and the attention factor.
            count: How many windows, the first ones; by default all.
        """
        if count is None:
            count = len(self.windows)
        numbers = range(min(count, len(self.windows)))
        # The search asks for some schedules several times: their losses are kept in memory. Those
        # of an earlier run are in the journal on disk, which `_measure_window` reads.
        digest = schedule.digest
        missing = [number for number in numbers if (digest, number) not in self.by_window]
        if missing:
            with self.runner.patched(schedule) as engine:
                for number in missing:
                    self.by_window[digest, number] = self._measure_window(engine, digest, number)
        return [self.by_window[digest, number] for number in numbers]

    def _measure_window(self, engine: Engine, digest: str, number: int) -> Losses:
        """Return the losses on a window, which is a part of a text.

        If an earlier search was interrupted, its journal may have the losses. Otherwise the model
        reads the window.

        Args:
            engine: The model, patched to compute the schedule.
            digest: The digest of the schedule.
            number: The index of the window.
        """
        window = self.windows[number]
        run_model = partial(_read_window, engine, window)
        key = ("loss", digest, window.digest)
        line = self.passes.read_or_run(key, run_model)
        self.seconds.append(line.seconds)

        # A line of the journal is a flat list of numbers: the loss of each target, and at the end
        # the loss of the number that is hidden in the text, or 0.
        *target_losses, needle_loss = line.numbers
        return Losses(
            tokens=np.array(target_losses),
            inside_count=window.inside_count,  # the first targets, inside the trained context
            needle=needle_loss,
        )

    def values(self, schedule: Schedule, count: int | None = None) -> NDArray[np.float64]:
        """Return the loss to minimise on each window. Parameters as in `losses`."""
        return np.array(
            [losses.weighted_sum(self.weights) for losses in self.losses(schedule, count)]
        )

    def difference(self, schedule: Schedule, other: Schedule, count: int | None = None) -> Sample:
        """Return paired differences of the loss to minimise, one per window; below 0 is better.

        They are in the order of the texts.

        Args:
            schedule: The frequencies and the attention factor.
            other: Those that it is compared with.
            count: How many windows, the first ones; by default all.
        """
        values = self.values(schedule, count) - self.values(other, count)
        return sample_windows(self.windows[: len(values)], values)

    def compare_with_best(self, schedule: Schedule, best: Schedule) -> Sample:
        """Return the loss of a schedule minus the loss of the best schedule, on each window.

        The windows are read one by one. As soon as the schedule is significantly worse, the
        remaining windows are skipped, since the model need not read them.

        Args:
            schedule: The frequencies and the attention factor.
            best: The best schedule so far.

        Returns:
            The differences with their mean and its standard error.
        """
        all_windows = len(self.windows)
        first_test = min(FEWEST, all_windows)  # a test needs FEWEST windows
        for count in range(first_test, all_windows + 1):
            differences = self.difference(schedule, best, count)
            is_significant = differences.decided
            is_worse = differences.mean > 0
            if is_significant and is_worse:
                break
        return differences


def _read_window(engine: Engine, window: TextWindow) -> list[float]:
    """Return the losses of the targets of a window, then that of its hidden number, or 0."""
    tokens = _token_losses(engine, window.text)
    needle = 0.0
    if window.needle is not None:
        needle = float(_token_losses(engine, window.needle).mean())
    if not np.isfinite(tokens).all() or not math.isfinite(needle):
        raise NotFinite("the model gives NaN or infinite logits; give --dtype float32 or bfloat16")
    return [*np.asarray(tokens, np.float64).tolist(), needle]


def _token_losses(engine: Engine, case: Case) -> NDArray[np.float64]:
    """Return the loss of each target of a sequence, in nats."""
    return engine.token_losses(case.ids.tolist(), case.targets.tolist()).loss


CURVE_POINTS = 16
"""Points of a curve by position."""


def rows(scorer: Scorer, candidates: Sequence[Candidate], reference: str) -> list[TuningRow]:
    """Return a row for each candidate: its losses on texts that the search has not read.

    Args:
        scorer: The scorer of held-out windows.
        candidates: The candidates.
        reference: The name of the candidate that the others are compared with.
    """
    losses = {candidate.name: scorer.losses(candidate.schedule) for candidate in candidates}
    table = []
    for candidate in candidates:
        compared_with = None
        if candidate.name != reference:
            compared_with = losses[reference]
        table.append(_row(candidate, losses[candidate.name], compared_with, scorer))
    return table


def _row(
    candidate: Candidate,
    losses: Sequence[Losses],
    reference: Sequence[Losses] | None,
    scorer: Scorer,
) -> TuningRow:
    """Return a candidate's row of the table: its mean losses, and their differences to another's.

    Args:
        candidate: A formula, such as YaRN, or the result of the search.
        losses: Its losses on each window.
        reference: Those of the candidate to compare with; None in the row of that candidate.
        scorer: The scorer of these windows.
    """
    columns = ["beyond", "inside", "total"]
    if scorer.windows[0].needle is not None:
        columns.append("needle")

    measurements = {}
    for column in columns:
        values = _losses_by_window(column, losses, scorer.weights)
        reference_values = None
        if reference is not None:
            reference_values = _losses_by_window(column, reference, scorer.weights)
        measurements[column] = measurement(scorer.windows, values, reference_values)
    return TuningRow(
        name=candidate.name,
        recipe=candidate.recipe.to_dict() if candidate.recipe else None,
        beyond=measurements["beyond"],
        inside=measurements["inside"],
        total=measurements["total"],
        needle=measurements.get("needle"),
        curve=_curve(scorer.windows[0], losses),
    )


def _losses_by_window(column: str, losses: Sequence[Losses], weights: Price) -> NDArray[np.float64]:
    """Return the numbers of a column of the table for each window, float64 [windows].

    All are mean losses in nats per token:

    - "beyond": the loss of tokens beyond the trained context
    - "inside": the loss of tokens inside the trained context
    - "needle": the loss of a number that is hidden in the text
    - "total": the weighted sum of these three, which the search minimises

    Args:
        column: The name of the column.
        losses: The losses on each window.
        weights: The weights of the total.
    """
    values = []
    for window_losses in losses:
        if column == "beyond":
            values.append(window_losses.beyond_loss)
        elif column == "inside":
            values.append(window_losses.inside_loss)
        elif column == "needle":
            values.append(window_losses.needle)
        else:
            values.append(window_losses.weighted_sum(weights))
    return np.array(values)


def _curve(window: TextWindow, losses: Sequence[Losses]) -> list[float]:
    """Return the mean loss at each point of a curve by position.

    Args:
        window: One of the windows, all of which have their targets at the same positions.
        losses: The losses on each window.
    """
    curve = []
    for first, end in blocks(window):
        means = [window_losses.tokens[first:end].mean() for window_losses in losses]
        curve.append(float(np.mean(means)))
    return curve


def blocks(window: TextWindow) -> list[tuple[int, int]]:
    """Return the first target of each point of a curve, and the one after its last.

    Half of the points are inside the trained context and half beyond it, so that none has targets
    on both sides.
    """
    count = len(window.text.targets)
    half = CURVE_POINTS // 2
    inside = np.linspace(0, window.inside_count, half + 1).astype(int).tolist()
    beyond = np.linspace(window.inside_count, count, half + 1).astype(int).tolist()
    ranges = pairwise(inside + beyond)
    return [(first, end) for first, end in ranges if end > first]  # without empty ones


def measurement(
    windows: Sequence[TextWindow],
    values: NDArray[np.float64],
    reference: NDArray[np.float64] | None,
) -> WindowMeasurement:
    """Return a mean loss of a row, and its difference from the reference, window by window.

    Args:
        windows: The windows.
        values: A number of the row on each window, such as the mean loss beyond the trained
            context, float64 [windows].
        reference: The same number of the reference; None in the row of the reference itself.
    """
    if reference is None:
        return WindowMeasurement(value=float(values.mean()))

    sample = sample_windows(windows, values - reference)
    return WindowMeasurement(
        value=float(values.mean()),
        difference=sample.mean,
        error=sample.error,
        margin=sample.margin,
        clusters=sample.count,
    )


def sample_windows(windows: Sequence[TextWindow], values: NDArray[np.float64]) -> Sample:
    """Return a number for each window as a sample, one text after the other.

    Windows are chosen in turn from all texts. The rule of `ropeconv.bake.proof` compares each
    window with the one before it in its text, since neighbours may be alike.

    Args:
        windows: The windows.
        values: A number for each, float64 [windows].
    """
    places = [(window.text.document, window.text.window) for window in windows]
    order = sorted(range(len(places)), key=lambda index: places[index])
    places.sort()
    documents = [document for document, _ in places]
    return Sample(
        values=values[order],
        weights=np.ones(len(order)),
        documents=codes(documents),
        windows=codes(places),
    )


def can_be_tested(windows: Sequence[TextWindow]) -> bool:
    """Return whether there are enough windows of a text, or texts, to test a difference."""
    sample = sample_windows(windows, np.zeros(len(windows)))
    return sample.equal_count >= FEWEST


HELD_OUT = 3
"""One text of three, or one third of each text, is held out."""
BETWEEN_WINDOWS = ", so errors do not cover the difference between texts"
"""The end of a clause on what is held out, where errors are between windows of few texts."""
DEPTHS = 5
"""Depths at which numbers are hidden, from the beginning of a window to its end."""


@dataclass(frozen=True, eq=False)
class TextWindow:
    """A window of text."""

    text: Case
    """The sequence with its targets."""

    inside_count: int
    """The number of targets inside the trained context, which come before those beyond it."""

    needle: Case | None = None
    """A sequence of the same length with a hidden number, whose digits are the targets."""

    @property
    def digest(self) -> str:
        """The digest of both sequences."""
        needle = self.needle.digest if self.needle else ""
        return f"{self.text.digest} {needle}"


def split(texts: Texts, context: int) -> tuple[Texts, Texts, str]:
    """Split texts into those to search with and held-out ones, and say how.

    With enough texts of `context` tokens every third one is held out, otherwise the last third of
    each.

    Args:
        texts: All texts.
        context: The length of a window in tokens, which the held-out texts must fill.

    Returns:
        The texts to search with, the held-out texts, and what is held out, as a clause.

    Raises:
        BadSource: There is not enough text for both.
    """
    length = context - len(texts.prefix)
    long = [document for document in texts.documents if len(document.ids) >= length]
    if len(long) < HELD_OUT:
        return _split_each_text(texts, length)

    # the texts 1, 2, 4, 5, 7, ... are for the search, and 3, 6, ... held out
    searched = []
    held = []
    for number, document in enumerate(long, 1):
        if number % HELD_OUT == 0:
            held.append(document)
        else:
            searched.append(document)
    note = f"{len(held)} of {len(long)} texts are held out"
    if len(held) < FEWEST_DOCUMENTS:
        note += BETWEEN_WINDOWS
    return _with_documents(texts, searched), _with_documents(texts, held), note


def _split_each_text(texts: Texts, length: int) -> tuple[Texts, Texts, str]:
    """Hold out the last third of each text that is long enough, as `split` returns them.

    Args:
        texts: All texts.
        length: The tokens of a text that a window reads.

    Raises:
        BadSource: No text is long enough.
    """
    searched = []
    held = []
    longest_third = 0
    for document in texts.documents:
        two_thirds = len(document.ids) * (HELD_OUT - 1) // HELD_OUT
        last_third = document.ids[two_thirds:]
        longest_third = max(longest_third, len(last_third))
        if len(last_third) >= length:
            searched.append(replace(document, ids=document.ids[:two_thirds]))
            held.append(replace(document, ids=last_third))
    if not held:
        raise BadSource(
            f"the held-out third of the text has {longest_third:,} tokens, and a window"
            f" {length:,}; give a longer --text, {HELD_OUT} texts of that length, or a --context up"
            f" to {format_tokens(longest_third + len(texts.prefix))}"
        )
    note = f"the last third of the text is held out{BETWEEN_WINDOWS}"
    return _with_documents(texts, searched), _with_documents(texts, held), note


def _with_documents(texts: Texts, documents: Iterable[TextDocument]) -> Texts:
    """Return other documents with the same tokenizer."""
    return replace(texts, documents=tuple(documents))


def windows(texts: Texts, sizes: EvaluationSizes, needles: bool = False) -> list[TextWindow]:
    """Return the windows on which losses are measured: parts of texts as long as the new context.

    The targets of a window are the tokens whose losses count. Half of them are inside the trained
    context, and half beyond it. Short texts give fewer windows.

    Args:
        texts: The texts.
        sizes: The length and the number of windows, and `targets`: how many tokens of each half.
        needles: Whether each window also has a sequence with a hidden number (needle).
    """
    # targets at even distances; the first token has nothing before it from which to predict it
    context = sizes.longest
    trained = min(sizes.trained, context)
    first = max(len(texts.prefix), 1)
    inside = _spread(first, trained, sizes.targets)
    beyond = _spread(trained, context, sizes.targets)
    targets = np.concatenate([inside, beyond])

    # `Passkey` makes sequences with a hidden number: for each window, one at each depth in the text
    hidden: list[Case] = []
    if needles:
        hidden = list(Passkey().cases(texts, replace(sizes, depths=DEPTHS)))

    result = []
    ends = window_ends(texts, sizes, apart=context)  # windows of a text do not overlap
    for number, (document, end) in enumerate(ends):
        text = Case(
            measure="tune",
            column=context,
            document=document,
            window=number,
            ids=texts.window(document, end, context),
            targets=targets,
        )
        needle = None
        if needles:
            # window 0 gets the first depth, window 1 the second, ..., and window 5 the first again
            cases_of_window = hidden[number * DEPTHS : (number + 1) * DEPTHS]
            needle = cases_of_window[number % DEPTHS]
        window = TextWindow(text=text, inside_count=len(inside), needle=needle)
        result.append(window)
    return result


def _spread(first: int, last: int, count: int) -> np.ndarray:
    """Return `count` indices from `first` to `last` - 1 at even distances, int32.

    (0, 9, 3) gives 0, 4, 8. Where there are no more than `count`, all of them are returned.
    """
    if last - first <= count:
        return np.arange(first, last, dtype=np.int32)
    return np.linspace(first, last - 1, count).round().astype(np.int32)
