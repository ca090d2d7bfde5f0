"""Evaluation: rows, measures and texts that fit together, which are estimated, run and summarised.

`evaluate_model` does all of it, and `open_evaluation` gives an `Evaluation` to do it step by step.
"""

import os
import re
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ropeconv.engines.engine import Output, Progress
from ropeconv.engines.transformers.load import advice_on_memory
from ropeconv.environment import installed
from ropeconv.errors import UsageError
from ropeconv.formats.disk import text_digest
from ropeconv.formats.journal import Journal, default_path
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.texts import TextLike
from ropeconv.inspection.receipts.metrics import metric_of
from ropeconv.options import copied
from ropeconv.rope.errors import RopeconvError, counted
from ropeconv.rope.lengths import format_duration
from ropeconv.verbs.rows import Row, parse_rows
from ropeconv.version import __version__

from .cases import EVAL, Case, EvalLine, EvaluationSizes, Observation, in_trained, parse_lengths
from .measures.lm_eval import LmEval
from .measures.losses import Sliding
from .measures.measure import REGISTRY, Measure
from .measures.ruler import GENERATED
from .options import SizeOptions
from .result import Result, items_of
from .run import (
    EvaluationUnit,
    Measurer,
    Refusal,
    RunOutcome,
    UnitResult,
    UnitRunner,
    all_cases,
    run_here,
)
from .runners.opening import open_runner
from .runners.runner import Runner, RunnerRequest
from .statistics import summarise
from .texts import Texts, gather_texts, tokenize

PATIENCE = 60.0
"""Seconds of a run that is announced once its first sequences were timed.

An estimate times no sequence that takes longer.
"""


@dataclass(frozen=True)
class Cost:
    """The seconds that a sequence of n tokens takes: token * n + pair * n^2."""

    token: float
    """Seconds per token, of matrix products."""

    pair: float = 0.0
    """Seconds per pair of tokens, of attention."""

    def of(self, case: Case) -> float:
        """Return the seconds that a case takes."""
        return self.token * len(case.ids) + self.pair * len(case.ids) ** 2


Costs = Mapping[str, Cost]
"""The cost of a sequence by measure."""


def fit_cost(timings: Sequence[tuple[int, float]]) -> Cost:
    """Return the cost that fits the shortest time at each length.

    A sequence of n tokens is taken to run for `token * n + pair * n**2` seconds: matrix products
    grow with n, and attention grows with its square.

    Args:
        timings: Tokens and seconds of sequences.
    """
    fastest: dict[int, float] = {}
    for length, time in timings:
        fastest[length] = min(time, fastest.get(length, time))
    lengths = np.array(list(fastest), float)
    seconds = np.maximum(np.array(list(fastest.values())), 1e-9)  # a clock may say 0

    # Least squares with both sides divided by the seconds, so that relative errors are minimised:
    # token * linear + pair * square = 1
    linear = lengths / seconds
    square = lengths**2 / seconds
    only_token = Cost(token=float(linear.sum() / (linear**2).sum()))
    only_pair = Cost(token=0.0, pair=float(square.sum() / (square**2).sum()))
    if len(fastest) == 1:
        return only_token

    ones = np.ones(len(fastest))
    solution = np.linalg.lstsq(np.stack([linear, square], 1), ones, rcond=None)[0]
    token, pair = solution.tolist()
    # noise may make one of them negative: fit only the other
    if token < 0:
        return only_pair
    if pair < 0:
        return only_token
    return Cost(token, pair)


@dataclass(frozen=True)
class Estimate:
    """The cost of an evaluation."""

    cases: Sequence[Case]
    """The cases to run."""

    costs: Costs

    at_once: int = 1
    """How many run at a time."""

    @property
    def seconds(self) -> float:
        """The time of the cases whose cost is known."""
        total = 0.0
        for case in self.cases:
            if case.measure in self.costs:
                total += self.costs[case.measure].of(case)
        return total / self.at_once

    @property
    def tokens(self) -> int:
        """The tokens of all cases."""
        return sum(len(case.ids) for case in self.cases)

    def to_dict(self) -> JsonObject:
        """Return the estimate as JSON-ready data."""
        return {
            "seconds": round(self.seconds, 1),
            "tokens": self.tokens,
            "sequences": len(self.cases),
        }

    @property
    def sentence(self) -> str:
        """The estimate for the user."""
        time = "will take an unknown time"
        if self.costs:
            time = f"take about {format_duration(self.seconds)}"
        return f"{counted(len(self.cases), 'sequence')} with {self.tokens:,} tokens {time}."

    def check(self, budget: float, sizes: EvaluationSizes) -> None:
        """Refuse an evaluation that takes longer than a budget.

        Args:
            budget: The budget in seconds, 0 for none.
            sizes: The sizes of the evaluation.

        Raises:
            UsageError: It takes longer; the message says what fits.
        """
        if budget and self.seconds > budget:
            raise over_budget(self.seconds, budget, self._what_fits(budget, sizes))

    @property
    def _windows(self) -> int:
        """The most windows of a measure, which are the same at all lengths."""
        windows_by_measure: dict[str, set[tuple[int, int]]] = {}
        for case in self.cases:
            windows = windows_by_measure.setdefault(case.measure, set())
            windows.add((case.document, case.window))
        return max(len(windows) for windows in windows_by_measure.values())

    def _what_fits(self, budget: float, sizes: EvaluationSizes) -> str:
        """Return options with which an evaluation stays within a budget in seconds.

        An example is "--windows 4 and --lengths up to 2T".

        Fewer windows of each length are tried first, and then also shorter lengths.
        """
        # The time is proportional to the number of windows, of which the texts may have fewer than
        # were asked for.
        all_windows = min(sizes.windows, self._windows)
        windows = int(all_windows * budget / self.seconds)
        if windows >= 1:
            return f"--windows {windows}"

        shorter_lengths = reversed(sizes.lengths[:-1])
        for length in shorter_lengths:
            short_cases = [case for case in self.cases if len(case.ids) <= length]
            seconds = Estimate(short_cases, self.costs, self.at_once).seconds
            seconds_per_window = seconds / all_windows
            if seconds and seconds_per_window <= budget:
                windows = min(all_windows, int(all_windows * budget / seconds))
                longest = in_trained(length, sizes.trained)  # such as "2T", twice the trained one
                return f"--windows {windows} and --lengths up to {longest}"
        return "a smaller model, or a GPU"


def choose_units_to_time(units: Sequence[EvaluationUnit]) -> list[EvaluationUnit]:
    """Return the units that are timed: two of the shortest length, and one of the next length.

    A unit is a sequence that one row reads. There are two of the shortest length, since the first
    one may take longer (warm-up).
    """
    by_length: dict[int, list[EvaluationUnit]] = {}
    for unit in units:
        by_length.setdefault(len(unit.case.ids), []).append(unit)

    chosen: list[EvaluationUnit] = []
    two_shortest_lengths = sorted(by_length)[:2]
    for length, count in zip(two_shortest_lengths, (2, 1), strict=False):
        chosen += by_length[length][:count]
    return chosen


UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str, units: Mapping[str, int] = UNITS) -> float:
    """Parse a duration such as `"90s"`, `"20m"` or `"1.5h"` into seconds.

    Args:
        text: The duration.
        units: The seconds of each unit, by its letter.

    Raises:
        UsageError: The text is not a duration.
    """
    # a number with at most three decimals, and the letter of a unit
    letters = "".join(units)
    match = re.fullmatch(rf"(\d{{1,6}}(?:\.\d{{1,3}})?)([{letters}])", text.strip())
    if match:
        number, letter = match.groups()
        seconds = float(number) * units[letter]
        if seconds > 0:
            return seconds
    raise UsageError(f"{text!r} is not a duration; write it like 90s, 20m or 2h")


def over_budget(seconds: float, budget: float, fits: str) -> UsageError:
    """Return the error for a run that takes longer than its budget.

    Args:
        seconds: The time that it takes.
        budget: The time that it may take, in seconds.
        fits: Options with which it would take less.
    """
    return UsageError(
        f"this takes about {format_duration(seconds)}, and --budget is {format_duration(budget)};"
        f" what fits: {fits}"
    )


class PossibleRow(NamedTuple):
    """A row that can be run."""

    row: Row

    digest: str
    """A digest of all that its numbers depend on, apart from the sequence that it reads."""

    measures: set[str]
    """The names of the measures that the runtime can compute for it: {"growth", "passkey"}."""


@dataclass
class Evaluation:
    """Rows, measures and texts."""

    rows: Sequence[Row]
    """The rows of the table; the others are compared with the first."""

    measures: Sequence[Measure]
    texts: Texts
    sizes: EvaluationSizes
    runner: Runner

    outcome: RunOutcome = field(default_factory=lambda: RunOutcome({}))
    """The measurements so far, and the refusals."""

    workers: Measurer | None = None
    """The workers that run the units; None for this process."""

    at_once: int = 1
    """How many units run at a time."""

    @cached_property
    def units(self) -> list[EvaluationUnit]:
        """All units in the order in which they are run: each a sequence that one row reads.

        A row is a variant of the model, such as `base` or `yarn:4`; a measure, such as the loss,
        has a case for each sequence of tokens. A unit is one case of one row.

        Those that cannot be run are among the refusals of `outcome`.

        Raises:
            UsageError: No row can be run; the message has the first reason.
        """
        cases = all_cases(self.measures, self.texts, self.sizes)
        possible_rows = self._possible_rows(cases)
        if self.runner.swaps:
            # one load serves all rows, so each sequence is read by all of them: a run that is
            # stopped early has compared them
            pairs = [(case, row) for case, row in product(cases, possible_rows)]
        else:
            # each row is a load of its own, so it reads all sequences before the next is loaded
            pairs = [(case, row) for row, case in product(possible_rows, cases)]

        units = []
        for (measure, case), possible in pairs:
            if measure.name in possible.measures:
                key = self._pass_key(measure, case, possible.digest)
                unit = EvaluationUnit(row=possible.row, measure=measure, case=case, key=key)
                units.append(unit)
        if not units:
            raise UsageError(f"no row can be run: {self._reason_of_first_refusal}")
        return units

    def _pass_key(self, measure: Measure, case: Case, row_digest: str) -> str:
        """Return the key of a pass of the model over a sequence, by which the journal keeps it.

        Later runs find the losses of the pass there. A measure that reads the losses of another one
        (`pass_of`) has the same key, so that the model runs once for both.

        Args:
            measure: The measure.
            case: The sequence.
            row_digest: The digest of the row.
        """
        runner = self.runner
        pass_name = measure.pass_of or measure.name
        parts = [runner.runtime, runner.device, runner.dtype, row_digest, pass_name, case.digest]
        if not measure.is_repeatable:
            parts.append(self._run_id)
        return text_digest(*parts)

    @cached_property
    def _run_id(self) -> str:
        """A random text of this run, which keeps other runs from finding its times."""
        return secrets.token_hex(8)

    def _possible_rows(self, cases: Sequence[tuple[Measure, Case]]) -> list[PossibleRow]:
        """Return the rows that can be run, and refuse the other rows and single measures.

        A runtime may refuse a row as a whole (one whose scaling llama.cpp lacks), or only a
        measure of it (a server that does not return the losses of a prompt).

        Args:
            cases: All sequences, each with its measure.

        Returns:
            The rows that can be run, each with the measures that the runtime can compute for it.
        """
        refusals = self.outcome.refusals

        # what each measure needs from an engine, such as losses, by its first case: all cases of a
        # measure need the same
        needed_outputs: dict[str, Output | None] = {}
        for measure, case in cases:
            if measure.name not in needed_outputs:
                needed_outputs[measure.name] = measure.needs(case)

        possible = []
        for row in self.rows:
            try:
                digest = self.runner.digest(row)
            except RopeconvError as problem:
                refusals.append(Refusal(row.name, str(problem)))
                continue

            supported_measures = set()
            for measure_name, output in needed_outputs.items():
                reason = self.runner.lacks(row, output)  # empty where the runtime gives the output
                if reason:
                    refusals.append(Refusal(row.name, reason, measure_name))
                else:
                    supported_measures.add(measure_name)
            possible.append(PossibleRow(row, digest, supported_measures))
        return possible

    @cached_property
    def passes(self) -> dict[str, list[EvaluationUnit]]:
        """The units by their key: those that use the same pass of the model.

        A pass is one run of the model over a sequence. The first unit of a list runs it, and the
        others, which are of other measures, use its losses.
        """
        passes: dict[str, list[EvaluationUnit]] = {}
        for unit in self.units:
            passes.setdefault(unit.key, []).append(unit)
        return passes

    def missing(self, journal: Journal[EvalLine] | None) -> list[EvaluationUnit]:
        """Return the units that are to be run.

        Args:
            journal: The journal of finished units; None for none.
        """
        finished = {} if journal is None else journal.lines
        return [units[0] for key, units in self.passes.items() if key not in finished]

    @property
    def measurer(self) -> Measurer:
        """The workers that run the units."""
        return self.workers or partial(run_here, runner=self.runner)

    def estimate(self, journal: Journal[EvalLine] | None = None) -> Estimate:
        """Return how long a run will take, after a few sequences were run to time them.

        Sequences that the journal has are not run again, so they cost nothing. Tasks of lm_eval,
        which run the model themselves, are not in the cost.

        Args:
            journal: The journal, which keeps the sequences that are run here; None to keep none.
        """
        costs = dict[str, Cost]()
        for measure in self.measures:
            if measure.runs_model:  # by itself, with lm_eval
                continue
            timings = self._time_measure(measure, journal)
            if timings:
                costs[measure.name] = fit_cost(timings)
        missing_cases = [unit.case for unit in self.missing(journal)]
        return Estimate(missing_cases, costs, self.at_once)

    def _time_measure(
        self, measure: Measure, journal: Journal[EvalLine] | None
    ) -> list[tuple[int, float]]:
        """Run a few short sequences of a measure, and return the tokens and seconds of each.

        Args:
            measure: The measure, such as growth.
            journal: The file of finished sequences, which gets the results; None for no file.

        Returns:
            The times of the first row (the model with one method) that runs; [] if no row runs.
        """
        # One pass of the model over a sequence can serve units of several measures. Its first unit
        # runs the model.
        first_units = [units[0] for units in self.passes.values()]
        for row in self.rows:
            units = [unit for unit in first_units if unit.row is row and unit.measure is measure]
            short_units = choose_units_to_time(units)
            timings = self._run_and_time(short_units, journal)
            if timings:
                return timings
        return []

    def _run_and_time(
        self, units: Sequence[EvaluationUnit], journal: Journal[EvalLine] | None
    ) -> list[tuple[int, float]]:
        """Run a few units, and return the tokens and seconds of each.

        A unit is one sequence that one row reads. Units in the journal are not run again.

        Args:
            units: Units of one measure and one row, the shortest sequences first.
            journal: The file of finished units with their times, which gets the results; None for
                no file.
        """
        # the times of earlier runs
        finished = journal.lines if journal else {}
        timings = []
        units_to_run = []
        for unit in units:
            if unit.key in finished:
                timings.append((len(unit.case.ids), finished[unit.key].seconds))
            else:
                units_to_run.append(unit)

        # each step of this loop runs one unit
        with closing(self.measurer(units_to_run)) as results:
            for index, result in results:
                if not isinstance(result, EvalLine):  # a refusal; the whole run will say why
                    break
                if journal:
                    journal.add(result)
                tokens = len(units_to_run[index].case.ids)
                timings.append((tokens, result.seconds))

                # Stop if the longest unit may take more than a minute (PATIENCE). The cost that
                # fits times at one length is linear in the tokens n, and attention takes n^2, so
                # the estimate is multiplied by the ratio of the lengths once more.
                longest_case = units_to_run[-1].case
                ratio = len(longest_case.ids) / tokens
                linear_estimate = fit_cost(timings).of(longest_case)
                if linear_estimate * ratio > PATIENCE:
                    break
        return timings

    def run(self, journal: Journal[EvalLine], progress: Progress | None = None) -> RunOutcome:
        """Run the sequences that the journal lacks, and return everything that was measured.

        Where a row such as "yarn:4" fails at a length, it has no number at that length, not even
        from the sequences that did run.

        Args:
            journal: The file of finished sequences, also of earlier runs, with their numbers.
            progress: Callbacks for a progress bar in tokens; None for no bar.

        Raises:
            RopeconvError: Every row failed.
            UsageError: A server answers otherwise than in the journal.
        """
        progress = progress or Progress()
        outcome = self.outcome
        for sentence in journal.notes:
            progress.note(sentence)
        if self.runner.may_change:
            self._refuse_changed_rows(journal)
        self._run_missing(journal, progress)

        # the numbers of each row, and the seconds that the model ran
        outcome.observations = self._collect_observations(journal)
        for key in self.passes:
            if key in journal.lines:
                outcome.seconds += journal.lines[key].seconds

        # longppl and a few other measures are computed from the losses of all lengths. `combine`
        # replaces these losses by the result. Without a result it returns the reason, which is
        # always about the first row.
        first_row = self.rows[0]
        for measure in self.measures:
            why_no_result = measure.combine(outcome.observations, self.sizes)
            if why_no_result:
                refusal = Refusal(row=first_row.name, reason=why_no_result, measure=measure.name)
                outcome.refusals.append(refusal)
        if not outcome.observations and not outcome.stopped:
            raise RopeconvError(f"no row was run: {self._reason_of_first_refusal}")
        return outcome

    def _refuse_changed_rows(self, journal: Journal[EvalLine]) -> None:
        """Refuse the numbers of a journal that a row does not give any more.

        A server tells its model and its length, and not its other settings. So each row reads the
        longest sequence that the journal has of it again.

        Args:
            journal: The file of finished sequences of earlier runs.

        Raises:
            UsageError: A number differs by more than rounding.
        """
        for row in self.rows:
            finished = []
            for key, units in self.passes.items():
                if key in journal.lines and units[0].row is row:
                    finished.append(units[0])
            if not finished:
                continue

            # losses differ where answers, which are right or wrong, are often the same
            longest = max(
                finished,
                key=lambda unit: (
                    not unit.case.generate,
                    len(unit.case.ids),
                    len(unit.case.targets),
                ),
            )
            with closing(UnitRunner(self.runner)) as running:
                result = running.run(longest)
            kept = journal.lines[longest.key]
            if isinstance(result, EvalLine) and _differ(kept, result):
                raise UsageError(
                    f"{row.name} answers otherwise than in the journal, {journal.path}, so its"
                    " server was started with other settings; give --fresh, or another --journal"
                )

    def _collect_observations(self, journal: Journal[EvalLine]) -> dict[str, list[Observation]]:
        """Return all numbers that were measured, by the row of the table, such as "yarn:4".

        Args:
            journal: The file of finished sequences, also of earlier runs, with their numbers.

        Returns:
            The numbers of each row; a row without numbers is left out.
        """
        observations: dict[str, list[Observation]] = {row.name: [] for row in self.rows}
        for unit in self.units:  # a unit is one test sequence, run with the method of one row
            row_name = unit.row.name
            line = journal.lines.get(unit.key)
            if line is None:  # the run was stopped before this sequence
                continue

            # if a row fails at a length, all its numbers at that length are left out; the length is
            # the column of the table
            why_refused = self.outcome.refused(row_name, unit.measure.name, unit.case.column)
            if why_refused:
                continue

            # The document, window and depth of a number say where the tokens stand in the texts. An
            # earlier run may have found the same tokens at another place, so they are set anew.
            for observation in line.observations:
                placed_observation = unit.measure.with_place(unit.case, observation)
                observations[row_name].append(placed_observation)
        return {name: numbers for name, numbers in observations.items() if numbers}

    def _run_missing(self, journal: Journal[EvalLine], progress: Progress) -> None:
        """Run the test sequences that the journal does not have, and add the results to it.

        Where a sequence cannot run, the reason is added to the refusals of `outcome`.

        Args:
            journal: The file of finished sequences, also of earlier runs.
            progress: Callbacks for a progress bar in tokens.
        """
        # a unit is one sequence that the model reads with the method of one row
        units_to_run = self.missing(journal)

        # The progress bar begins with the tokens of earlier runs. `passes` has a list of units for
        # each pass of the model over a sequence; their tokens count once.
        all_tokens = sum(len(units[0].case.ids) for units in self.passes.values())
        missing_tokens = sum(len(unit.case.ids) for unit in units_to_run)
        progress.total(all_tokens)
        progress.advance(all_tokens - missing_tokens)

        # each step of this loop runs one unit
        refusal_by_index = dict[int, Refusal]()
        with closing(self._run_and_announce(units_to_run, progress.note)) as results:
            for index, result in results:
                unit = units_to_run[index]
                if isinstance(result, EvalLine):
                    journal.add(result)
                elif result is not None:
                    refusal_by_index[index] = result
                progress.advance(len(unit.case.ids))
                if progress.stopped():
                    self.outcome.stopped = True
                    break

        # workers finish in any order, so refusals are sorted to give the same result in each run
        for index, refusal in sorted(refusal_by_index.items()):
            key_of_pass = units_to_run[index].key
            self._add_refusal(refusal, self.passes[key_of_pass])

    def _add_refusal(self, refusal: Refusal, units: Iterable[EvaluationUnit]) -> None:
        """Add to the outcome why the model did not run over a sequence.

        Args:
            refusal: The reason, with the row, and with the measure and the length that are refused.
                Without a measure ("") the whole row is refused.
            units: The units that need this run of the model, one for each measure, such as growth
                and longppl. There is a refusal for each measure.
        """
        for unit in units:
            refusal_of_measure = refusal
            if refusal.measure:
                refusal_of_measure = replace(refusal, measure=unit.measure.name)

            # add it once: several sequences of a length may fail for the same reason
            known_reason = self.outcome.refused(
                refusal_of_measure.row, refusal_of_measure.measure, refusal_of_measure.column
            )
            if not known_reason:
                self.outcome.refusals.append(refusal_of_measure)

    def _run_and_announce(
        self, units: Sequence[EvaluationUnit], note: Callable[[str], None]
    ) -> Generator[UnitResult, None, None]:
        """Run units, and note once how long the rest takes, as soon as that can be estimated.

        Args:
            units: The units to run.
            note: Shows a sentence to the user.

        Yields:
            The index of each unit, and its result.
        """
        # a measure that runs the model itself, such as a task of lm_eval, cannot be estimated
        measures = {unit.measure.name for unit in units if not unit.measure.runs_model}
        timings: dict[str, list[tuple[int, float]]] = {measure: [] for measure in measures}
        left = dict(enumerate(units))
        is_announced = False
        with closing(self.measurer(units)) as results:
            for index, result in results:
                yield index, result  # first, so that the caller writes it into the journal
                unit = left.pop(index)
                if is_announced or not isinstance(result, EvalLine):  # a refusal has no time
                    continue

                # the cost has a part that is linear in the tokens, and a quadratic one, which need
                # times at two lengths
                timing = (len(unit.case.ids), result.seconds)
                timings.setdefault(unit.case.measure, []).append(timing)
                can_estimate = all(_has_two_lengths(timings[measure]) for measure in measures)
                if not can_estimate:
                    continue

                is_announced = True
                costs = {measure: fit_cost(timings[measure]) for measure in measures}
                cases_left = [unit.case for unit in left.values()]
                estimate = Estimate(cases_left, costs, self.at_once)
                if estimate.seconds > PATIENCE:
                    note(f"The other {estimate.sentence}")

    @property
    def _reason_of_first_refusal(self) -> str:
        """Why the first row was refused."""
        refusals = self.outcome.refusals
        return refusals[0].reason if refusals else "there is none"

    @property
    def _sample(self) -> str:
        """A digest of the texts and of all that chooses which tokens of them are predicted."""
        sizes = self.sizes
        # the shortest length bounds the targets, and the longest one the places of windows
        chosen = (
            sizes.trained,
            sizes.lengths,
            sizes.windows,
            sizes.targets,
            sizes.depths,
            sizes.seed,
            sizes.generate,
        )
        strides = [measure.stride for measure in self.measures if isinstance(measure, Sliding)]
        return text_digest(self.texts.sha256, *map(str, (*chosen, *strides)))[:16]

    def result(self, source: str) -> Result:
        """Return the result so far.

        Args:
            source: How the user named the model.
        """
        summary = summarise(self.outcome, self.rows, self.sizes)
        runner = self.runner
        texts = [document.name for document in self.texts.documents]
        notes = [*summary.notes, *self.texts.notes]
        if runner.note:
            notes.append(runner.note)
        return Result(
            source=source,
            model=runner.model,
            identity=runner.source,
            runtime=runner.runtime,
            device=runner.device,
            dtype=runner.dtype,
            trained=self.sizes.trained,
            original_context=runner.original_context,
            sliding_window=runner.sliding_window,
            lengths=list(self.sizes.lengths),
            measures=[measure.name for measure in self.measures],
            texts=texts,
            tokens_sha256=self.texts.sha256,
            seed=self.sizes.seed,
            windows=self.sizes.windows,
            targets=self.sizes.targets,
            depths=self.sizes.depths,
            generate=self.sizes.generate,
            seconds=round(self.outcome.seconds, 1),
            rows=summary.rows,
            cells=summary.cells,
            items=items_of(self.outcome.observations, texts),
            sample=self._sample,
            notes=notes,
            ropeconv=__version__,
        )


SAME = 0.02
"""Nats by which servers change the mean loss of a sequence from one run to the next: other requests
beside it change the rounding of bfloat16.
"""


def _differ(kept: EvalLine, new: EvalLine) -> bool:
    """Return whether a sequence gives other numbers than before, apart from rounding."""
    losses = _mean_loss(kept)
    new_losses = _mean_loss(new)
    if losses is not None and new_losses is not None:
        return abs(new_losses - losses) > SAME
    answers = [observation.value for observation in kept.observations]
    return answers != [observation.value for observation in new.observations]


def _mean_loss(line: EvalLine) -> float | None:
    """Return the mean of the losses or log-probabilities of a sequence; None for answers only."""
    values = [one.value for one in line.observations if not metric_of(one.metric).share]
    return float(np.mean(values)) if values else None


def _has_two_lengths(timings: Sequence[tuple[int, float]]) -> bool:
    """Return whether sequences of two lengths were timed."""
    return len({length for length, _ in timings}) > 1


def parse_measures(text: str) -> list[Measure]:
    """Parse measures such as `"growth,passkey,sliding:256"`.

    Raises:
        UsageError: A name is unknown, or there twice.
    """
    measures = dict[str, Measure]()
    for part in text.split(","):
        measure = _parse_measure(part.strip())
        if measure.name in measures:
            raise UsageError(f"--measure has {measure.name} twice; name each once")
        measures[measure.name] = measure
    return list(measures.values())


def _parse_measure(text: str) -> Measure:
    """Return the measure of a text such as `growth`, `sliding:256` or `lm-eval:hellaswag`."""
    name, _, value = text.partition(":")
    if name == "lm-eval":
        return LmEval(value)
    if name not in REGISTRY:
        raise UsageError(
            f"--measure {text} is not known; choose {', '.join(REGISTRY)}, lm-eval:TASK"
        )
    if not value:
        return REGISTRY[name]

    # the stride of a sliding window, in tokens
    if name == "sliding" and value.isdigit() and 0 < int(value) < 1 << 20:
        return Sliding(int(value))
    raise UsageError(
        f"--measure {text} is not understood; only sliding has a number, as in sliding:256"
    )


SUITES = {"long": ("growth", "passkey", "niah", "keys", "latest", "speed")}
"""The measures of `--suite`, besides tasks of RULER."""


def suite_measures(suite: str) -> list[Measure]:
    """Return the measures of a suite; the tasks of RULER only where lm_eval is installed.

    Raises:
        UsageError: The suite is unknown.
    """
    if suite not in SUITES:
        raise UsageError(f"--suite {suite} is not known; choose {', '.join(SUITES)}")
    measures = [REGISTRY[name] for name in SUITES[suite]]
    if installed("lm_eval"):
        measures += [LmEval(task, only_known_lengths=True) for task in GENERATED]
    return measures


ANY_TRAINED_CONTEXT = 4096
"""A trained context with which sizes are checked before that of the model is known."""


@dataclass(frozen=True)
class Sizes(SizeOptions):
    """The sizes of an evaluation as users write them; the fields are those of `SizeOptions`."""

    def resolve(self, trained: int) -> EvaluationSizes:
        """Return the sizes in tokens.

        Args:
            trained: The trained context in tokens.

        Raises:
            UsageError: A value is wrong.
            RecipeError: A length is out of bounds.
        """
        lengths = parse_lengths(self.lengths, trained)
        return copied(EvaluationSizes, self, lengths=lengths, trained=trained)

    def chosen_measures(self) -> list[Measure]:
        """Return the measures of --measure, then those of --suite.

        Raises:
            UsageError: A name is unknown, or there twice.
        """
        chosen = {measure.name: measure for measure in parse_measures(self.measures)}
        if self.suite:
            for measure in suite_measures(self.suite):
                chosen.setdefault(measure.name, measure)
        return list(chosen.values())


def refuse_ignored(
    names: Set[str], model: str, servers: Sequence[str], measures: Sequence[Measure]
) -> None:
    """Refuse an option that has no effect with the chosen measures and servers.

    Args:
        names: The names of the options that the user gave, such as "depths". A default has no
            effect either, but the user did not ask for it.
        model: The model; empty where only servers are measured.
        servers: The servers that are measured.
        measures: The measures.

    Raises:
        UsageError: An option has no effect.
    """
    # sizes that only some measures read
    used_sizes: set[str] = set()
    for measure in measures:
        used_sizes |= measure.sizes
    if "targets" in names and "targets" not in used_sizes:
        raise UsageError("--targets is for --measure growth; leave it out")
    if "depths" in names and "depths" not in used_sizes:
        raise UsageError(
            "--depths is for facts hidden in a text; add --measure passkey, or leave it out"
        )
    if "generate" in names and "generate" not in used_sizes:
        raise UsageError("--generate is for questions; add --measure passkey, or leave it out")
    if "seed" in names and "seed" not in used_sizes:
        raise UsageError("--seed is for questions; add --measure passkey, or leave it out")

    # a server was started with its own options, and knows its own family
    for name in ("chunk", "threads"):
        if name in names and servers:
            raise UsageError(f"--{name} is for models that are loaded here; leave it out")
    if "family" in names and servers and not model:
        raise UsageError("--family is that of MODEL, and none is given; leave it out")


@contextmanager
def open_evaluation(
    request: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
) -> Iterator[Evaluation]:
    """Yield an evaluation, which can be estimated and run inside the block; its result stays.

    Args:
        request: The model and its rows.
        sizes: The sizes of the measures.
        files: Names and contents of texts.

    Raises:
        UsageError: Options do not go together.
        BadSource: The model or a text cannot be read.
    """
    measures = sizes.chosen_measures()
    # Loading a model takes minutes, so the sizes are checked before. The length 2T is twice the
    # trained context, for which the check has some number.
    sizes.resolve(ANY_TRAINED_CONTEXT)
    with open_runner(request) as (runner, rows):
        texts = tokenize(files, runner.tokenizer)
        yield Evaluation(
            rows=rows,
            measures=measures,
            texts=texts,
            sizes=sizes.resolve(runner.trained),
            runner=runner,
        )


def evaluate_model(
    model: str | os.PathLike[str],
    methods: str,
    texts: TextLike | Iterable[TextLike],
    sizes: Sizes | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
    **options: Any,
) -> Result:
    """Measure what methods do to a model.

    Args:
        model: A checkpoint, a GGUF file, or an output of `apply`.
        methods: The rows, such as "base,yarn:4".
        texts: Files, patterns or texts, as in `gather_texts`. Empty for tasks of lm_eval, which
            have texts of their own.
        sizes: The measures and lengths, by default the loss of the same tokens at four lengths.
        journal: The file of finished sequences, by default in the cache.
        progress: Callbacks, which are called while tokens are read.
        fresh: Begin a new journal; the one there gets another name.
        options: Other fields of `RunnerRequest`.

    Raises:
        RopeconvError: Where a model, a text or all rows cannot be run.
    """
    rows = []
    if methods:
        rows = parse_rows(methods)
    request = RunnerRequest(model=str(model), rows=rows, **options)
    sizes = sizes or Sizes()
    files = []
    if texts or any(measure.needs_text for measure in sizes.chosen_measures()):
        files = gather_texts(texts)
    with open_evaluation(request, sizes, files) as evaluation:
        source = evaluation.runner.source
        path = default_path(source) if journal is None else Path(journal)
        with Journal(path, EVAL, source, fresh) as opened, advice_on_memory():
            evaluation.run(opened, progress)
    return evaluation.result(str(model))
