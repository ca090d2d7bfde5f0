"""Unit, a case to run for a row, and the order of all units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import RopeconvError
from ..formats.digest import text_digest
from .asked import Asked
from .case import Case
from .measures import Measure
from .outcome import Outcome, Refusal
from .row import Row
from .runners import Runner
from .texts.documents import Texts


@dataclass(frozen=True)
class Unit:
    """A case to run for a row. key: of both and of what computes them, in the journal."""

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
    """All units in the order in which they are run. What cannot be run is noted in `outcome.refusals`.

    rows: of the evaluation. cases: as `all_cases` gives them. runner: of the rows. outcome: where refusals are noted.
    """
    needs = {measure.name: (measure, measure.needs(case)) for measure, case in reversed(cases)}
    possible: list[tuple[Row, str, set[str]]] = []
    for row in rows:
        try:
            digest = runner.digest(row)
        except RopeconvError as problem:
            outcome.refusals.append(Refusal(row.name, str(problem)))
            continue
        without = set()
        for measure, output in needs.values():
            reason = runner.lacks(row, output)
            if reason:
                outcome.refusals.append(Refusal(row.name, reason, measure.name))
                without.add(measure.name)
        possible.append((row, digest, without))

    def unit(row: Row, digest: str, measure: Measure, case: Case) -> Unit:
        return Unit(row, measure, case, text_digest(runner.runtime, runner.device, runner.dtype, digest, case.digest))

    if runner.swaps:
        return [unit(r, d, m, c) for m, c in cases for r, d, without in possible if m.name not in without]
    return [unit(r, d, m, c) for r, d, without in possible for m, c in cases if m.name not in without]
