"""Run the cases of an evaluation for every row: units of work, and what they give.

`run_here` runs units in this process; `all_cases` puts the cases of all measures in turn.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from ropeconv.engines.engine import Engine
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import Row

from .cases import Case, EvalLine, EvaluationSizes, Observation, in_trained
from .measures.measure import Measure
from .runners.runner import Runner
from .texts import Texts


@dataclass(frozen=True)
class Refusal:
    """Why a row was not measured."""

    row: str

    reason: str
    """A sentence."""

    measure: str = ""
    """The measure that is refused; empty for all."""

    column: int | None = None
    """The column of its table, which is a length in tokens as a rule; None for all."""


@dataclass
class RunOutcome:
    """The observations of a run."""

    observations: dict[str, list[Observation]]
    """The observations by the name of the row."""

    refusals: list[Refusal] = field(default_factory=list)

    seconds: float = 0.0
    """The time of all cases, also in earlier runs."""

    stopped: bool = False
    """Whether the run was stopped before its end."""

    def refused(self, row: str, measure: str = "", column: int | None = None) -> str:
        """Return why a row, a measure of it, or a column of that was not run; empty if it was.

        A refusal of the whole row is also one of its measures.
        """
        for refusal in self.refusals:
            same_measure = refusal.measure in ("", measure)
            same_column = refusal.column in (None, column)
            if refusal.row == row and same_measure and same_column:
                return refusal.reason
        return ""

    def sentences(self, trained: int, rows: Sequence[str] = ()) -> list[str]:
        """Return a sentence for each reason of a refusal.

        Args:
            trained: The trained context in tokens.
            rows: Names of rows. If such a row was refused as a whole (its refusal has no measure),
                the sentence is left out.
        """
        # the same reason at several lengths is one sentence: "yarn:4, growth at 2T, 4T: ..."
        refused_lengths: dict[tuple[str, str, str], list[str]] = {}
        for refusal in self.refusals:
            is_of_whole_row = refusal.measure == ""
            if is_of_whole_row and refusal.row in rows:
                continue
            key = (refusal.row, refusal.measure, refusal.reason.rstrip("."))
            lengths = refused_lengths.setdefault(key, [])
            if refusal.column is not None:  # the length of the sequence in tokens
                lengths.append(in_trained(refusal.column, trained))

        sentences = []
        for (row, measure, reason), lengths in refused_lengths.items():
            place = f"{row}, {measure}" if measure else row
            if lengths:
                place += f" at {', '.join(lengths)}"
            sentences.append(f"{place}: {reason}.")
        return sentences


@dataclass(frozen=True)
class EvaluationUnit:
    """A case to run for a row."""

    row: Row
    measure: Measure
    case: Case

    key: str
    """The key in the journal: of row, case, and what computes them."""


def all_cases(
    measures: Sequence[Measure], texts: Texts, sizes: EvaluationSizes
) -> list[tuple[Measure, Case]]:
    """Return the test sequences (cases) of all measures, each with its measure, mixed evenly.

    So a run that is stopped early has some of each measure.
    """
    cases_by_measure = [(measure, list(measure.cases(texts, sizes))) for measure in measures]
    longest = max(len(cases) for _, cases in cases_by_measure)

    # Each list is stretched to the longest one: of 4 cases A and 2 cases B, A are at 0.5, 1.5,
    # 2.5, 3.5 and B at 1, 3, so that they run as A B A A B A.
    placed: list[tuple[float, int, Measure, Case]] = []
    for number, (measure, cases) in enumerate(cases_by_measure):
        for index, case in enumerate(cases):
            place = (index + 0.5) * longest / len(cases)
            placed.append((place, number, measure, case))
    placed.sort(key=lambda entry: entry[:2])  # by place; the measure that is named first wins a tie
    return [(measure, case) for _, _, measure, case in placed]


UnitResult = tuple[int, EvalLine | Refusal | None]
"""The index of a unit and its result.

It is None where the unit was left out after another one of its column had failed.
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
        """Run a unit: let the model of a row read one sequence.

        Args:
            unit: The row, the sequence, and the measure that says what is computed from it.

        Returns:
            The numbers, or why there are none (a refusal). A row whose model does not load is
            refused as a whole, and one whose model fails on the sequence only for this measure and
            length.
        """
        name = unit.row.name
        try:
            engine = self._engine_of(unit.row)
        except RopeconvError as problem:
            return Refusal(name, str(problem))

        begin = time.perf_counter()
        try:
            observations = unit.measure.run(name, unit.case, engine, self.runner.tokenizer)
        except RopeconvError as problem:
            return Refusal(
                row=name, reason=str(problem), measure=unit.measure.name, column=unit.case.column
            )
        seconds = time.perf_counter() - begin
        return EvalLine(unit.key, seconds, observations)

    def _engine_of(self, row: Row) -> Engine:
        """Return the engine of a row, in the place of that of the row before."""
        if self._loaded is not None:
            loaded_row, loaded_engine = self._loaded
            if loaded_row is row:
                return loaded_engine
        self.close()
        engine = self._stack.enter_context(self.runner.engine(row))
        self._loaded = (row, engine)
        return engine

    def close(self) -> None:
        """Free the engine."""
        self._loaded = None
        self._stack.close()


def run_here(units: Sequence[EvaluationUnit], runner: Runner) -> Generator[UnitResult, None, None]:
    """Run units one after the other in this process.

    A unit is one test sequence that one row of the table, such as yarn:4, reads.

    Yields:
        The index of each unit and its result, which is None for a unit that was left out.
    """
    # A row that cannot be loaded is not tried again, nor a length that did not fit into memory:
    # the row, the measure and the length of each refusal.
    failed: set[tuple[str, str, int | None]] = set()
    with closing(UnitRunner(runner)) as running:
        for index, unit in enumerate(units):
            row = unit.row.name
            # a refusal of a whole row has neither a measure nor a length
            whole_row = (row, "", None)
            this_length = (row, unit.measure.name, unit.case.column)
            if whole_row in failed or this_length in failed:
                yield index, None
                continue

            result = running.run(unit)
            if isinstance(result, Refusal):
                failed.add((result.row, result.measure, result.column))
            yield index, result
