"""Evaluation: rows, measures and texts that fit together, which is estimated, run and summarised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..engines import Progress
from ..errors import RopeconvError, UsageError
from ..formats.journal import Journal
from ..version import __version__
from .asked import Asked
from .case import Case, EvalLine
from .estimate import Costs, Estimate, estimate, probe
from .measures import REGISTRY, Measure
from .measures.lm_eval import LmEval
from .outcome import Outcome
from .result import Result
from .row import Row
from .run import run_units
from .runners import Runner
from .statistics.summary import summarise
from .texts.documents import Texts
from .units import Unit, all_cases, plan_units

RunUnits = Callable[[Sequence[Unit], Runner, Journal[EvalLine], Progress, Outcome], None]


@dataclass
class Evaluation:
    """What is measured.

    rows: of the table, the first of which the others are compared with. measures: in the order of the tables. texts:
    that are read. asked: sizes. runner: of the rows. outcome: what was measured so far, and what was refused.
    """

    rows: Sequence[Row]
    measures: Sequence[Measure]
    texts: Texts
    asked: Asked
    runner: Runner
    outcome: Outcome = field(default_factory=lambda: Outcome({}))

    @cached_property
    def units(self) -> list[Unit]:
        """All units to run, in order. Raises UsageError where no row can be run, with the first reason."""
        cases = all_cases(self.measures, self.texts, self.asked)
        found = plan_units(self.rows, cases, self.runner, self.outcome)
        if not found:
            raise UsageError(f"no row can be run: {self._first_reason}")
        return found

    def missing(self, journal: Journal[EvalLine]) -> list[Case]:
        """The cases that are to be run. journal: of finished units."""
        return [unit.case for unit in self.units if unit.key not in journal.lines]

    def costs(self) -> Costs:
        """The costs of sequences, from short ones run with the first row that loads; empty where none does."""
        timed = [unit.case for unit in self.units if not unit.measure.runs_model]
        for row in {unit.row.name: unit.row for unit in self.units}.values() if timed else ():
            try:
                with self.runner.engine(row) as engine:
                    return probe(engine, timed)
            except RopeconvError:
                continue  # the run will say why
        return {}

    def estimate(self, cases: Sequence[Case] | None = None) -> Estimate:
        """What some cases cost, by default all of them. Tasks of lm_eval are not in it."""
        return estimate([unit.case for unit in self.units] if cases is None else cases, self.costs())

    def run(self, journal: Journal[EvalLine], progress: Progress | None = None, by: RunUnits = run_units) -> Outcome:
        """Runs what the journal does not have, and returns everything that was measured.

        journal: of finished units. progress: callbacks; the total is in tokens. by: runs them, by default in this
        process. Raises RopeconvError where every row failed.
        """
        heard = progress or Progress()
        for sentence in journal.notes:
            heard.note(sentence)
        by(self.units, self.runner, journal, heard, self.outcome)
        if not self.outcome.observations and not self.outcome.stopped:
            raise RopeconvError(f"no row was run: {self._first_reason}")
        return self.outcome

    @property
    def _first_reason(self) -> str:
        return next((one.reason for one in self.outcome.refusals), "there is none")

    def result(self, source: str) -> Result:
        """What was measured so far. source: how the user named the model."""
        found, runner = summarise(self.outcome, self.rows, self.asked), self.runner
        return Result(
            source=source, identity=runner.source, runtime=runner.runtime, device=runner.device, dtype=runner.dtype,
            trained=self.asked.trained, lengths=list(self.asked.lengths), measures=[one.name for one in self.measures],
            texts=[document.name for document in self.texts.documents], tokens_sha256=self.texts.sha256,
            seed=self.asked.seed, seconds=round(self.outcome.seconds, 1), rows=found.rows, cells=found.cells,
            notes=[*found.notes, *self.texts.notes, *filter(None, [runner.note])], ropeconv=__version__,
        )  # fmt: skip


def parse_measures(text: str) -> tuple[list[Measure], int]:
    """`"growth,passkey,sliding:256"` as measures, and the stride of sliding (0 where none is given).

    Raises UsageError for unknown names, and for one that is there twice.
    """
    found, stride = list[Measure](), 0
    for part in (piece.strip() for piece in text.split(",")):
        name, _, value = part.partition(":")
        measure = LmEval(value) if name == "lm-eval" else REGISTRY.get(name)
        if measure is None:
            raise UsageError(f"--measure {part} is not known; choose {', '.join(REGISTRY)}, lm-eval:TASK")
        if measure.name in [one.name for one in found]:
            raise UsageError(f"--measure has {measure.name} twice; name each once")
        if (
            value
            and not measure.runs_model
            and (name != "sliding" or not value.isdigit() or not 0 < int(value) < 1 << 20)
        ):
            raise UsageError(f"--measure {part} is not understood; only sliding takes a number, as in sliding:256")
        stride = int(value) if name == "sliding" and value else stride
        found.append(measure)
    return found, stride
