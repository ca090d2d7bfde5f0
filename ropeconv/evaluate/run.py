"""Runs an evaluation: every case for every row, through the journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..engines import Engine, Progress, TokenLosses
from ..errors import RopeconvError
from .asked import Asked
from .case import Case, Observation
from .journal import Journal, key_of
from .measures import Measure
from .row import Row
from .runners import Runner
from .texts.documents import Texts, Tokenizer


@dataclass
class Outcome:
    """What was measured.

    observations: by the name of the row. refused: why rows, or a measure of a row, were not run, by the name of the row
    (and the measure). seconds: that the cases took, also in earlier runs. cases: how many were run or found in the
    journal. stopped: whether it was stopped before the end.
    """

    observations: dict[str, list[Observation]]
    refused: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cases: int = 0
    stopped: bool = False


@dataclass(frozen=True)
class Unit:
    """A case to run for a row."""

    row: Row
    measure: Measure
    case: Case
    key: str


def all_cases(measures: Sequence[Measure], texts: Texts, asked: Asked) -> list[tuple[Measure, Case]]:
    """The cases of all measures, in turn, so that a run that is stopped early has some of each."""
    streams = [(measure, list(measure.cases(texts, asked))) for measure in measures]
    longest = max(len(cases) for _, cases in streams)
    places = [
        ((index + 0.5) * longest / len(cases), number, measure, case)
        for number, (measure, cases) in enumerate(streams)
        for index, case in enumerate(cases)
    ]
    return [(measure, case) for _, _, measure, case in sorted(places, key=lambda found: found[:2])]


def plan_units(
    rows: Sequence[Row], cases: Sequence[tuple[Measure, Case]], runner: Runner, outcome: Outcome
) -> list[Unit]:
    """All units in the order in which they are run. Rows that cannot be run are noted in `outcome.refused`.

    rows: of the evaluation. cases: as `all_cases` gives them. runner: of the rows. outcome: where refusals are noted.
    """
    possible: list[tuple[Row, str, set[str]]] = []
    for row in rows:
        try:
            schedule, digest = runner.schedule(row), runner.digest(row)
        except RopeconvError as problem:
            outcome.refused[row.name] = str(problem)
            continue
        names = set()
        for measure in {one.name: one for one, _ in cases}.values():
            reason = measure.refuses(schedule) if schedule is not None else ""
            if reason:
                outcome.refused[f"{row.name}, {measure.name}"] = reason
                names.add(measure.name)
        possible.append((row, digest, names))

    def unit(row: Row, digest: str, measure: Measure, case: Case) -> Unit:
        return Unit(row, measure, case, key_of(runner.runtime, runner.dtype, digest, case.digest))

    if runner.swaps:
        return [unit(r, d, m, c) for m, c in cases for r, d, without in possible if m.name not in without]
    return [unit(r, d, m, c) for r, d, without in possible for m, c in cases if m.name not in without]


def run_units(units: Sequence[Unit], runner: Runner, journal: Journal, progress: Progress, outcome: Outcome) -> None:
    """Runs units that the journal does not have, and adds what was measured to `outcome`.

    units: as `plan_units` gives them. runner: of the rows. journal: of finished units. progress: callbacks; the total
    is in tokens. outcome: where observations and refusals are added. Raises RopeconvError where logits are no numbers.
    """
    progress.total(sum(len(unit.case.ids) for unit in units))
    for row, part in _by_row(units):
        if row.name in outcome.refused:
            continue
        missing = [unit for unit in part if unit.key not in journal.done]
        try:
            if missing:
                with runner.engine(row) as engine:
                    for unit in missing:
                        run_unit(unit, engine, journal, Progress(stopped=lambda: False), runner.tokenizer)
                        progress.advance(len(unit.case.ids))
                        if progress.stopped():
                            outcome.stopped = True
                            break
        except (NotFinite, KeyboardInterrupt):
            raise
        except RopeconvError as problem:
            outcome.refused[row.name] = str(problem)
        for unit in part:
            found = journal.done.get(unit.key)
            if found is None:
                continue
            if unit not in missing:
                progress.advance(len(unit.case.ids))
            outcome.observations.setdefault(row.name, []).extend(found.observations)
            outcome.seconds += found.seconds
            outcome.cases += 1
        if outcome.stopped:
            return


def _by_row(units: Sequence[Unit]) -> Iterator[tuple[Row, list[Unit]]]:
    """Consecutive units of the same row."""
    part: list[Unit] = []
    for unit in units:
        if part and part[-1].row is not unit.row:
            yield part[-1].row, part
            part = []
        part.append(unit)
    if part:
        yield part[-1].row, part


class NotFinite(RopeconvError):
    """A model gave logits that are not numbers."""


def run_unit(
    unit: Unit,
    engine: Engine,
    journal: Journal,
    progress: Progress,
    tokenizer: Tokenizer,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Runs one unit, and appends it to the journal.

    unit: to run. engine: of its row. journal: of finished units. progress: callbacks. tokenizer: of the model. clock:
    in seconds. Raises NotFinite where a loss is not a number.
    """
    case, start = unit.case, clock()
    if unit.measure.runs_model:
        found = unit.measure.observe_model(case, engine, tokenizer)
        journal.add(unit.key, clock() - start, found)
        return
    if case.generate:
        said = engine.generate(case.ids[: case.targets[0]].tolist(), case.generate)
        journal.add(unit.key, clock() - start, unit.measure.observe_text(case, tokenizer.decode(said)))
        return
    losses: TokenLosses = engine.token_losses(case.ids.tolist(), case.targets.tolist(), progress)
    if not np.isfinite(losses.loss).all():
        first = int(case.targets[~np.isfinite(losses.loss)][0])
        where = engine.not_finite_in(case.ids.tolist())
        raise NotFinite(
            f"{unit.row.name} gives logits that are no numbers at position {first:,} of {len(case.ids):,}"
            f"{where and f', which begins in the output of {where}'}; give --dtype float32 or bfloat16"
        )
    journal.add(unit.key, clock() - start, unit.measure.observe(case, losses))
