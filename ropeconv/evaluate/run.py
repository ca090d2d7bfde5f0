"""Runs an evaluation: every case for every row, through the journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..engines import Engine, Progress, TokenLosses
from ..errors import NotFinite, RopeconvError
from ..formats.journal import Journal
from .case import EvalLine, Observation
from .outcome import Outcome, Refusal
from .row import Row
from .runners import Runner
from .texts.documents import Tokenizer
from .units import Unit


def run_units(
    units: Sequence[Unit], runner: Runner, journal: Journal[EvalLine], progress: Progress, outcome: Outcome
) -> None:
    """Runs units that the journal does not have, and adds what was measured to `outcome`.

    A column of a measure that fails for a row is refused for that row alone, and has no cell, not even from the windows
    that did run. units: as `plan_units` gives them. runner: of the rows. journal: of finished units. progress:
    callbacks; the total is in tokens. outcome: where observations and refusals are added.
    """
    progress.total(sum(len(unit.case.ids) for unit in units))
    for row, part in _by_row(units):
        missing = [unit for unit in part if unit.key not in journal.lines and not _refused(unit, outcome)]
        progress.advance(sum(len(unit.case.ids) for unit in part) - sum(len(unit.case.ids) for unit in missing))
        if missing:
            try:
                _run_row(missing, row, runner, journal, progress, outcome)
            except RopeconvError as problem:
                outcome.refusals.append(Refusal(row.name, str(problem)))
        if outcome.stopped:
            break
    gather(units, journal, outcome)


def _run_row(
    missing: Sequence[Unit], row: Row, runner: Runner, journal: Journal[EvalLine], progress: Progress, outcome: Outcome
) -> None:
    """Runs units of one row. Its engine is let go at the end, before that of another row is loaded."""
    with runner.engine(row) as engine:
        for unit in missing:
            if not _refused(unit, outcome):
                try:
                    journal.add(measured(unit, engine, runner.tokenizer))
                except RopeconvError as problem:
                    outcome.refusals.append(Refusal(row.name, str(problem), unit.measure.name, unit.case.column))
            progress.advance(len(unit.case.ids))
            if progress.stopped():
                outcome.stopped = True
                return


def _refused(unit: Unit, outcome: Outcome) -> bool:
    return bool(outcome.refused(unit.row.name, unit.measure.name, unit.case.column))


def gather(units: Sequence[Unit], journal: Journal[EvalLine], outcome: Outcome) -> None:
    """Adds what the journal has of units to an outcome, in their order."""
    for unit in units:
        found = journal.lines.get(unit.key)
        if found is not None and not _refused(unit, outcome):
            own: list[Observation] = outcome.observations.setdefault(unit.row.name, [])
            own += [unit.measure.placed(unit.case, one) for one in found.observations]
            outcome.seconds += found.seconds
            outcome.cases += 1


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


def measured(
    unit: Unit,
    engine: Engine,
    tokenizer: Tokenizer,
    clock: Callable[[], float] = time.perf_counter,
) -> EvalLine:
    """Runs one unit, and returns its line for the journal.

    unit: to run. engine: of its row. tokenizer: of the model. clock: in seconds. Raises NotFinite where a loss is NaN
    or infinite.
    """
    case, start = unit.case, clock()
    if unit.measure.runs_model:
        found = unit.measure.observe_model(case, engine, tokenizer)
    elif case.generate:
        said = engine.generate(case.ids[: case.targets[0]].tolist(), case.generate)
        found = unit.measure.observe_text(case, tokenizer.decode(said))
    else:
        losses: TokenLosses = engine.token_losses(case.ids.tolist(), case.targets.tolist())
        if not np.isfinite(losses.loss).all():
            raise _not_finite(unit, engine, losses)
        found = unit.measure.observe(case, losses)
    return EvalLine(unit.key, clock() - start, list(found))


def _not_finite(unit: Unit, engine: Engine, losses: TokenLosses) -> NotFinite:
    case = unit.case
    first = int(case.targets[~np.isfinite(losses.loss)][0])
    where = engine.not_finite_in(case.ids.tolist())
    return NotFinite(
        f"{unit.row.name} gives NaN or infinite logits at position {first:,} of {len(case.ids):,}"
        f"{where and f', which begin in the output of {where}'}; give --dtype float32 or bfloat16"
    )
