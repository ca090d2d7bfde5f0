"""Evaluation: rows, measures and texts that fit together, which is estimated, run and
summarised.
"""

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..engines.engine import Progress
from ..errors import UsageError
from ..formats.disk import text_digest
from ..formats.journal import Journal, default_path
from ..formats.jsontext import JsonObject
from ..formats.texts import TextLike
from ..options import SizeOptions, copied
from ..rope.errors import RopeconvError, counted
from ..version import __version__
from .cases import EVAL, Case, EvalLine, EvaluationSizes, Observation, in_trained, parse_lengths
from .measures.lm_eval import LmEval
from .measures.losses import Sliding
from .measures.measure import REGISTRY, Measure
from .result import Result
from .row import Row, parse_rows
from .run import EvaluationUnit, Measurer, Refusal, RunOutcome, UnitResult, all_cases, run_here
from .runners.opening import open_runner
from .runners.runner import Runner, RunnerRequest
from .statistics import summarise
from .texts import Texts, gather_texts, tokenized

PATIENCE = 60.0
"""Seconds: a longer run is announced once its first sequences were timed, and an estimate times
none that is longer.
"""


@dataclass(frozen=True)
class Cost:
    """The time of a sequence of n tokens of one measure in seconds, token n + pair n^2."""

    token: float
    pair: float = 0.0

    def of(self, case: Case) -> float:
        """The seconds that a case takes."""
        return self.token * len(case.ids) + self.pair * len(case.ids) ** 2


Costs = Mapping[str, Cost]
"""The cost of a sequence by measure."""


def fit_cost(timings: Sequence[tuple[int, float]]) -> Cost:
    """The cost that fits the shortest time at each length. timings: tokens and seconds of
    sequences.
    """
    fastest = {
        length: min(time for size, time in timings if size == length) for length, _ in timings
    }
    lengths = np.array(list(fastest), float)
    seconds = np.array(list(fastest.values()))
    terms = np.stack([lengths, lengths**2], 1) / np.maximum(seconds, 1e-9)[:, None]
    if len(fastest) > 1:
        token, pair = np.linalg.lstsq(terms, np.ones(len(fastest)), rcond=None)[0].tolist()
        if token >= 0 and pair >= 0:
            return Cost(token, pair)
        if token < 0:
            return Cost(0.0, float(terms[:, 1].sum() / (terms[:, 1] ** 2).sum()))
    return Cost(float(terms[:, 0].sum() / (terms[:, 0] ** 2).sum()))


@dataclass(frozen=True)
class Estimate:
    """The cost of an evaluation. cases: to run. costs: of a sequence by measure. at_once: how many
    run at a time.
    """

    cases: Sequence[Case]
    costs: Costs
    at_once: int = 1

    @property
    def seconds(self) -> float:
        """The time of the cases whose cost is known."""
        known = [case for case in self.cases if case.measure in self.costs]
        return sum(self.costs[case.measure].of(case) for case in known) / self.at_once

    @property
    def tokens(self) -> int:
        """The tokens of all cases."""
        return sum(len(case.ids) for case in self.cases)

    def to_dict(self) -> JsonObject:
        """JSON-ready data."""
        return {
            "seconds": round(self.seconds, 1),
            "tokens": self.tokens,
            "sequences": len(self.cases),
        }

    @property
    def sentence(self) -> str:
        """The estimate for the user."""
        takes = (
            f"take about {duration(self.seconds)}" if self.costs else "will take an unknown time"
        )
        return f"{counted(len(self.cases), 'sequence')} with {self.tokens:,} tokens {takes}."

    def check(self, budget: float, sizes: EvaluationSizes) -> None:
        """Raises UsageError, with what fits, where it takes longer than a budget in seconds; 0 for
        none.
        """
        if budget and self.seconds > budget:
            raise UsageError(
                f"this takes about {duration(self.seconds)}, and --budget is {duration(budget)};"
                f" what fits: {self._fitting(budget, sizes)}"
            )

    def _fitting(self, budget: float, sizes: EvaluationSizes) -> str:
        """Options with which the cases stay within a budget in seconds."""
        windows = int(sizes.windows * budget / self.seconds)
        if windows >= 1:
            return f"--windows {windows}"
        for length in reversed(sizes.lengths[:-1]):
            shorter = replace(
                self, cases=[case for case in self.cases if len(case.ids) <= length]
            ).seconds
            if shorter and shorter / sizes.windows <= budget:
                fewer = min(sizes.windows, int(sizes.windows * budget / shorter))
                return f"--windows {fewer} and --lengths up to {in_trained(length, sizes.trained)}"
        return "a smaller model, or a GPU"


def probes(units: Sequence[EvaluationUnit]) -> list[EvaluationUnit]:
    """The units that are timed: two of the shortest length, of which the first may warm up, and one
    of the next.
    """
    lengths = sorted({len(unit.case.ids) for unit in units})[:2]
    return [
        unit
        for length, count in zip(lengths, (2, 1), strict=False)
        for unit in [unit for unit in units if len(unit.case.ids) == length][:count]
    ]


UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str, units: Mapping[str, int] = UNITS) -> float:
    """`"90s"`, `"20m"` or `"1.5h"` in seconds. units: in seconds, by letter. Raises UsageError for
    anything else.
    """
    match = re.fullmatch(rf"(\d{{1,6}}(?:\.\d{{1,3}})?)([{''.join(units)}])", text.strip())
    if not match or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not a duration; write it like 90s, 20m or 2h")
    return float(match[1]) * units[match[2]]


def duration(seconds: float) -> str:
    """Seconds for display: `"45 s"`, `"12 min"`, `"3.5 h"`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass
class Evaluation:
    """Rows, measures and texts.

    rows: of the table; the others are compared with the first. outcome: what was measured so far,
    and what was refused. workers: run the units, None for this process. at_once: how many of them
    run at a time.
    """

    rows: Sequence[Row]
    measures: Sequence[Measure]
    texts: Texts
    sizes: EvaluationSizes
    runner: Runner
    outcome: RunOutcome = field(default_factory=lambda: RunOutcome({}))
    workers: Measurer | None = None
    at_once: int = 1

    @cached_property
    def units(self) -> list[EvaluationUnit]:
        """All units in the order in which they are run. Those that cannot be run are among the
        refusals of `outcome`.

        Raises UsageError where no row can be run, with the first reason.
        """
        cases = all_cases(self.measures, self.texts, self.sizes)
        runner = self.runner
        refusals = self.outcome.refusals
        needs = {measure.name: measure.needs(case) for measure, case in reversed(cases)}
        possible: list[tuple[Row, str, set[str]]] = []
        for row in self.rows:
            try:
                digest = runner.digest(row)
            except RopeconvError as problem:
                refusals.append(Refusal(row.name, str(problem)))
                continue
            lacks = {name: runner.lacks(row, output) for name, output in needs.items()}
            refusals += [
                Refusal(row.name, reason, name) for name, reason in lacks.items() if reason
            ]
            possible.append((row, digest, {name for name, reason in lacks.items() if not reason}))
        pairs = (
            product(cases, possible)
            if runner.swaps
            else ((case, row) for row, case in product(possible, cases))
        )
        by = (runner.runtime, runner.device, runner.dtype)
        units = [
            EvaluationUnit(
                row,
                measure,
                case,
                text_digest(*by, digest, measure.pass_of or measure.name, case.digest),
            )
            for (measure, case), (row, digest, measured) in pairs
            if measure.name in measured
        ]
        if not units:
            raise UsageError(f"no row can be run: {self._first_reason}")
        return units

    @cached_property
    def passes(self) -> dict[str, list[EvaluationUnit]]:
        """The units by their key: those with the same key read one pass of the model, which the
        first of them runs.
        """
        passes: dict[str, list[EvaluationUnit]] = {}
        for unit in self.units:
            passes.setdefault(unit.key, []).append(unit)
        return passes

    def missing(self, journal: Journal[EvalLine] | None) -> list[EvaluationUnit]:
        """The units that are to be run. journal: of finished units; None for none."""
        return [
            units[0]
            for key, units in self.passes.items()
            if journal is None or key not in journal.lines
        ]

    @property
    def measurer(self) -> Measurer:
        """The runner of the units."""
        return self.workers or partial(run_here, runner=self.runner)

    def estimate(self, journal: Journal[EvalLine] | None = None) -> Estimate:
        """The cost of what the journal does not have, after its first sequences; these are kept in
        the journal.

        Tasks of lm_eval are not in it.
        """
        costs = dict[str, Cost]()
        for measure in self.measures:
            timings = [] if measure.runs_model else self._timings(measure, journal)
            if timings:
                costs[measure.name] = fit_cost(timings)
        return Estimate([unit.case for unit in self.missing(journal)], costs, self.at_once)

    def _timings(
        self, measure: Measure, journal: Journal[EvalLine] | None
    ) -> list[tuple[int, float]]:
        """Tokens and seconds of the probes of a measure, with the first row that runs."""
        for row in self.rows:
            timings = list[tuple[int, float]]()
            units = [
                unit
                for unit, *_ in self.passes.values()
                if unit.row is row and unit.measure is measure
            ]
            chosen = probes(units)
            known = journal.lines if journal else {}
            timings += [
                (len(unit.case.ids), known[unit.key].seconds)
                for unit in chosen
                if unit.key in known
            ]
            chosen = [unit for unit in chosen if unit.key not in known]
            with closing(self.measurer(chosen)) as results:
                for index, line in results:
                    if not isinstance(line, EvalLine):
                        break  # the run will say why
                    if journal:
                        journal.add(line)
                    timings.append((len(chosen[index].case.ids), line.seconds))
                    longest = chosen[-1].case
                    if (
                        fit_cost(timings).of(longest)
                        * len(longest.ids)
                        / len(chosen[index].case.ids)
                        > PATIENCE
                    ):
                        break
            if timings:
                return timings
        return []

    def run(self, journal: Journal[EvalLine], progress: Progress | None = None) -> RunOutcome:
        """Runs what the journal does not have, and returns everything that was measured.

        A column of a measure that fails for a row is refused for that row, and has no cell, not
        even from the windows that did run. journal: of finished units. progress: callbacks; the
        total is in tokens. Raises RopeconvError where every row failed.
        """
        progress = progress or Progress()
        outcome = self.outcome
        for sentence in journal.notes:
            progress.note(sentence)
        self._run_missing(journal, progress)
        observations: dict[str, list[Observation]] = {row.name: [] for row in self.rows}
        for unit in self.units:
            line = journal.lines.get(unit.key)
            if line is not None and not outcome.refused(
                unit.row.name, unit.measure.name, unit.case.column
            ):
                observations[unit.row.name] += [
                    unit.measure.placed(unit.case, number) for number in line.observations
                ]
        outcome.seconds += sum(
            journal.lines[key].seconds for key in self.passes if key in journal.lines
        )
        outcome.observations = {name: numbers for name, numbers in observations.items() if numbers}
        for measure in self.measures:
            reason = measure.combine(outcome.observations, self.sizes)
            if reason:
                outcome.refusals.append(Refusal(self.rows[0].name, reason, measure.name))
        if not outcome.observations and not outcome.stopped:
            raise RopeconvError(f"no row was run: {self._first_reason}")
        return outcome

    def _run_missing(self, journal: Journal[EvalLine], progress: Progress) -> None:
        """Runs the units that the journal does not have, and keeps what was measured or refused."""
        missing = self.missing(journal)
        outcome = self.outcome
        refusals = dict[int, Refusal]()
        tokens = sum(len(unit.case.ids) for unit, *_ in self.passes.values())
        progress.total(tokens)
        progress.advance(tokens - sum(len(unit.case.ids) for unit in missing))
        with closing(self._announced(missing, progress.note)) as results:
            for index, result in results:
                if isinstance(result, EvalLine):
                    journal.add(result)
                elif result is not None:
                    refusals[index] = result
                progress.advance(len(missing[index].case.ids))
                if progress.stopped():
                    outcome.stopped = True
                    break
        for index, refusal in sorted(refusals.items()):
            for measure in [
                unit.measure.name if refusal.measure else ""
                for unit in self.passes[missing[index].key]
            ]:
                if not outcome.refused(refusal.row, measure, refusal.column):
                    outcome.refusals.append(replace(refusal, measure=measure))

    def _announced(
        self, units: Sequence[EvaluationUnit], note: Callable[[str], None]
    ) -> Generator[UnitResult, None, None]:
        """Runs units, and notes how long the others take, once two lengths of each measure were
        timed.
        """
        timings = dict[str, list[tuple[int, float]]]()
        announced = False
        names = {unit.measure.name for unit in units if not unit.measure.runs_model}
        finished = set[int]()
        with closing(self.measurer(units)) as results:
            for index, result in results:
                yield index, result
                finished.add(index)
                if announced or not isinstance(result, EvalLine):
                    continue
                case = units[index].case
                timings.setdefault(case.measure, []).append((len(case.ids), result.seconds))
                if timings.keys() >= names and all(
                    len({size for size, _ in timings[name]}) > 1 for name in names
                ):
                    costs = {name: fit_cost(timings[name]) for name in names}
                    left = [
                        unit.case for number, unit in enumerate(units) if number not in finished
                    ]
                    cost = Estimate(left, costs, self.at_once)
                    announced = True
                    if cost.seconds > PATIENCE:
                        note(f"The other {cost.sentence}")

    @property
    def _first_reason(self) -> str:
        return next((refusal.reason for refusal in self.outcome.refusals), "there is none")

    def result(self, source: str) -> Result:
        """Return the result so far. source: how the user named the model."""
        summary = summarise(self.outcome, self.rows, self.sizes)
        runner = self.runner
        return Result(
            source=source,
            identity=runner.source,
            runtime=runner.runtime,
            device=runner.device,
            dtype=runner.dtype,
            trained=self.sizes.trained,
            lengths=list(self.sizes.lengths),
            measures=[measure.name for measure in self.measures],
            texts=[document.name for document in self.texts.documents],
            tokens_sha256=self.texts.sha256,
            seed=self.sizes.seed,
            seconds=round(self.outcome.seconds, 1),
            rows=summary.rows,
            cells=summary.cells,
            notes=[*summary.notes, *self.texts.notes, *filter(None, [runner.note])],
            ropeconv=__version__,
        )


def parse_measures(text: str) -> list[Measure]:
    """`"growth,passkey,sliding:256"` as measures.

    Raises UsageError for unknown names, and for one that is there twice.
    """
    measures = dict[str, Measure]()
    for part in (piece.strip() for piece in text.split(",")):
        name, _, value = part.partition(":")
        if name == "lm-eval":
            measure: Measure = LmEval(value)
        elif name not in REGISTRY:
            raise UsageError(
                f"--measure {part} is not known; choose {', '.join(REGISTRY)}, lm-eval:TASK"
            )
        elif not value:
            measure = REGISTRY[name]
        elif name == "sliding" and value.isdigit() and 0 < int(value) < 1 << 20:
            measure = Sliding(int(value))
        else:
            raise UsageError(
                f"--measure {part} is not understood; only sliding has a number, as in sliding:256"
            )
        if measure.name in measures:
            raise UsageError(f"--measure has {measure.name} twice; name each once")
        measures[measure.name] = measure
    return list(measures.values())


SOME = 4096
"""A trained context with which sizes are checked before that of the model is known."""


@dataclass(frozen=True)
class Sizes(SizeOptions):
    """The sizes of an evaluation, as users write them: the fields are those of `SizeOptions` in
    ropeconv/options.py.
    """

    def resolve(self, trained: int) -> EvaluationSizes:
        """The sizes in tokens. trained: the trained context. Raises UsageError and RecipeError for
        wrong values.
        """
        return copied(
            EvaluationSizes, self, lengths=parse_lengths(self.lengths, trained), trained=trained
        )


@contextmanager
def open_evaluation(
    opening: RunnerRequest, sizes: Sizes, files: Sequence[tuple[str, str]]
) -> Iterator[Evaluation]:
    """An evaluation that can be estimated and run while it is entered; its result stays.

    opening: the model and its rows. sizes: what is measured. files: names and contents of texts.
    Raises UsageError for options that do not go together, BadSource where the model or a text
    cannot be read.
    """
    measures = parse_measures(sizes.measures)
    sizes.resolve(SOME)  # before a model is loaded
    with open_runner(opening) as (runner, rows):
        yield Evaluation(
            rows,
            measures,
            tokenized(files, runner.tokenizer),
            sizes.resolve(runner.trained),
            runner,
        )


def evaluate_model(
    model: str | os.PathLike[str],
    methods: str,
    texts: TextLike | Iterable[TextLike],
    sizes: Sizes | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Measures what methods do to a model.

    Args:
        model: A checkpoint, a GGUF file, or an output of `apply`.
        methods: The rows, such as "base,yarn:4".
        texts: Files, patterns or texts, as in `gather_texts`.
        sizes: The measures and lengths, by default the loss of the same tokens at four lengths.
        journal: The file of finished sequences, by default in the cache.
        progress: Callbacks.
        options: Other fields of `RunnerRequest`.

    Raises:
        RopeconvError: Where a model, a text or all rows cannot be run.
    """
    opening = RunnerRequest(str(model), parse_rows(methods) if methods else [], **options)
    with open_evaluation(opening, sizes or Sizes(), gather_texts(texts)) as evaluation:
        source = evaluation.runner.source
        with Journal(
            default_path(source) if journal is None else Path(journal), EVAL, source
        ) as opened:
            evaluation.run(opened, progress)
    return evaluation.result(str(model))
