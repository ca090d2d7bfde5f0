"""Hidden states of both sides of a comparison: the source, in all its parts, and the baked checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..engines import Progress
from ..engines.transformers import TransformersEngine
from ..engines.transformers.patch import nudged, round_weights
from ..rope.log_n import LogN, QueryScaling
from ..rope.schedule import Schedule
from .comparison import Comparison
from .sampling.token_runs import TokenRun
from .settings import Settings

PARTS = 3  # chunks of a spread run, for the noise floor


@dataclass
class HiddenStates:
    """Hidden states per run of tokens; all but `reference` and `baked` for spread runs only.

    control: the source left alone. reference: the source with the schedule. noise_runs: the same in ways that make no
    difference but rounding: other chunks, frequencies two steps of float32 away, weights rounded where a fold has
    rounded them, and another precision; each with the engine that has its head, None for the source's own. formula:
    with log-n itself where the reference has what stands for it. speed: tokens per second of whole runs.
    """

    control: list[Any] = field(default_factory=list)
    reference: list[Any] = field(default_factory=list)
    noise_runs: list[tuple[TransformersEngine | None, list[Any]]] = field(default_factory=list)
    formula: list[Any] = field(default_factory=list)
    baked: list[Any] = field(default_factory=list)
    speed: dict[str, float] = field(default_factory=dict)

    def by_precision(self, values: list[float]) -> tuple[list[float], list[float]]:
        """Values that belong to `noise_runs`, parted into the source's own precision and another."""
        pairs = list(zip(self.noise_runs, values, strict=True))
        return [value for (own, _), value in pairs if own is None], [value for (own, _), value in pairs if own]

    def timed(self, name: str, runs: list[TokenRun], read: Callable[[TokenRun], Any]) -> list[Any]:
        """Reads every run, and notes under `name` the speed of one over every position."""
        found = []
        for run in runs:
            begin = time.perf_counter()
            found.append(read(run))
            if run.kind == "whole" and len(found[-1]) == len(run.kept):
                self.speed[name] = round(len(run.ids) / (time.perf_counter() - begin), 1)
        return found


@dataclass(frozen=True)
class ComparisonSpec:
    """What is compared, how it runs, and what the caller hears of it."""

    comparison: Comparison
    settings: Settings
    progress: Progress

    def patched(
        self,
        engine: TransformersEngine,
        run: TokenRun,
        chunk: int = 0,
        schedule: Schedule | None = None,
        scale: LogN | QueryScaling | None = None,
    ) -> Any:
        """Hidden states of the source with the schedule patched in, which is taken back afterwards.

        chunk: tokens at a time, 0 for the engine's own. schedule, scale: in the place of the comparison's.
        """
        case = self.comparison
        scale = scale or case.scale
        undo = engine.patch(schedule or case.schedule, case.spec, scale, case.queries if scale else "")
        own, engine.chunk = engine.chunk, chunk or engine.chunk
        try:
            return self.plain(engine, run)
        finally:
            engine.chunk = own
            undo()

    def plain(self, engine: TransformersEngine, run: TokenRun) -> Any:
        """Hidden states of a model as it is; only runs over every position can be stopped."""
        heard = self.progress if run.kind == "whole" else Progress(advance=self.progress.advance)
        return engine.hidden_states(run.ids, run.positions, run.kept, heard)


def read_source(engine: TransformersEngine, spec: ComparisonSpec, runs: list[TokenRun], dtype: str) -> HiddenStates:
    """Everything that the source has to say.

    engine: the source as it loads; weights that a fold has rounded are rounded in it at the end. dtype: it runs in.
    """
    case, samples, states = spec.comparison, [run for run in runs if run.kind == "spread"], HiddenStates()
    states.control = [spec.plain(engine, run) for run in samples]
    if isinstance(case.scale, QueryScaling) and case.schedule.log_n is not None:
        states.formula = [spec.patched(engine, run, scale=case.schedule.log_n) for run in samples]
    states.reference = states.timed("reference", runs, lambda run: spec.patched(engine, run))
    if case.schedule.short_inv_freq is None:  # else the list in force changes with the chunk, which is no noise
        states.noise_runs.append((None, [spec.patched(engine, run, -(-len(run.ids) // PARTS)) for run in samples]))
    nearby = nudged(case.schedule)
    states.noise_runs.append((None, [spec.patched(engine, run, schedule=nearby) for run in samples]))
    folded = case.rounded_weights(dtype)
    if folded:
        round_weights(engine.model, {name: case.checkpoint.tensors[name].dtype for name in folded})
        states.noise_runs.append((None, [spec.patched(engine, run) for run in samples]))
    return states


def read_noise_run(
    engine: TransformersEngine, spec: ComparisonSpec, runs: list[TokenRun]
) -> tuple[TransformersEngine, list[Any]]:
    """The reference of the source in another precision: the engine, with its head only, and states of spread runs."""
    found = [spec.patched(engine, run) for run in runs if run.kind == "spread"]
    return engine.without_layers(), found
