"""Runs the cases of an evaluation for every row, and keeps them in the journal."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from ..engines.engine import Engine
from ..rope.errors import RopeconvError
from .cases import Case, EvalLine, EvaluationSizes, Observation, in_trained
from .measures.measure import Measure
from .row import Row
from .runners.runner import Runner
from .texts import Texts


@dataclass(frozen=True)
class Refusal:
    """Why a row was not measured. reason: a sentence. measure: empty for all. column: of its table;
    None for all.
    """

    row: str
    reason: str
    measure: str = ""
    column: int | None = None


@dataclass
class RunOutcome:
    """The observations of a run.

    observations: by the name of the row. seconds: of all cases, also in earlier runs. stopped:
    whether it was stopped before the end.
    """

    observations: dict[str, list[Observation]]
    refusals: list[Refusal] = field(default_factory=list)
    seconds: float = 0.0
    stopped: bool = False

    def refused(self, row: str, measure: str = "", column: int | None = None) -> str:
        """Why a row, a measure of it, or a column of that was not run; empty where it was.

        A refusal of the whole row is also one of its measures.
        """
        for refusal in self.refusals:
            if (
                refusal.row == row
                and refusal.measure in ("", measure)
                and refusal.column in (None, column)
            ):
                return refusal.reason
        return ""

    def sentences(self, trained: int, rows: Sequence[str] = ()) -> list[str]:
        """The refusals, once for each reason, without those of whole `rows`. trained: context in
        tokens.
        """
        places: dict[tuple[str, str, str], list[str]] = {}
        for refusal in self.refusals:
            if refusal.measure or refusal.row not in rows:
                lengths = places.setdefault(
                    (refusal.row, refusal.measure, refusal.reason.rstrip(".")), []
                )
                lengths += [] if refusal.column is None else [in_trained(refusal.column, trained)]
        return [
            f"{row}{measure and f', {measure}'}{' at ' * bool(lengths)}{', '.join(lengths)}:"
            f" {reason}."
            for (row, measure, reason), lengths in places.items()
        ]


@dataclass(frozen=True)
class EvaluationUnit:
    """A case to run for a row. key: in the journal; of both, and of what computes them."""

    row: Row
    measure: Measure
    case: Case
    key: str


def all_cases(
    measures: Sequence[Measure], texts: Texts, sizes: EvaluationSizes
) -> list[tuple[Measure, Case]]:
    """The cases of all measures, in turn, so that a run that is stopped early has some of each."""
    streams = [(measure, list(measure.cases(texts, sizes))) for measure in measures]
    longest = max(len(cases) for _, cases in streams)
    places = [
        ((index + 0.5) * longest / len(cases), number, measure, case)
        for number, (measure, cases) in enumerate(streams)
        for index, case in enumerate(cases)
    ]
    return [(measure, case) for _, _, measure, case in sorted(places, key=lambda place: place[:2])]


UnitResult = tuple[int, EvalLine | Refusal | None]
"""The index of a unit and its result; None where it was left out after another one of its column
had failed.
"""
Measurer = Callable[[Sequence[EvaluationUnit]], Generator[UnitResult, None, None]]
"""Runs units, one or several at a time. Closing the generator drops those that have not started."""


class UnitRunner:
    """Runs units one after the other, with the engine of one row at a time."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._stack = ExitStack()
        self._loaded: tuple[Row, Engine] | None = None

    def run(self, unit: EvaluationUnit) -> EvalLine | Refusal:
        """Run a unit; a refusal is of its whole row where that has no engine, otherwise of its
        column.
        """
        name = unit.row.name
        try:
            if self._loaded is None or self._loaded[0] is not unit.row:
                self.close()
                self._loaded = unit.row, self._stack.enter_context(self.runner.engine(unit.row))
        except RopeconvError as problem:
            return Refusal(name, str(problem))
        begin = time.perf_counter()
        try:
            observations = unit.measure.run(name, unit.case, self._loaded[1], self.runner.tokenizer)
        except RopeconvError as problem:
            return Refusal(name, str(problem), unit.measure.name, unit.case.column)
        return EvalLine(unit.key, time.perf_counter() - begin, observations)

    def close(self) -> None:
        """Free the engine."""
        self._loaded = None
        self._stack.close()


def run_here(units: Sequence[EvaluationUnit], runner: Runner) -> Generator[UnitResult, None, None]:
    """Run units in this process, as a `Measurer`."""
    failed: set[tuple[str, str, int | None]] = set()
    with closing(UnitRunner(runner)) as running:
        for index, unit in enumerate(units):
            name = unit.row.name
            if failed & {(name, "", None), (name, unit.measure.name, unit.case.column)}:
                yield index, None
                continue
            result = running.run(unit)
            if isinstance(result, Refusal):
                failed.add((result.row, result.measure, result.column))
            yield index, result
