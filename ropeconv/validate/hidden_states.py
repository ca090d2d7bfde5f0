"""Reads the hidden states of both sides of a comparison: the source in several variants, and the output."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engines.engine import Progress
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.patch import choose_all_keys, nudged, round_weights, scale_scores
from ..rope.schedule import LogN, QueryScaling, Schedule
from .comparison import Comparison, Settings
from .sampling import TokenRun

if TYPE_CHECKING:
    from torch import Tensor

PARTS = 3  # chunks of a spread run, for the noise floor


@dataclass
class HiddenStates:
    """Hidden states, one tensor [positions, hidden_size] per run; all but `reference` and `baked` for spread runs only.

    control: of the unpatched source. reference: of the source patched to the schedule. noise_runs: of the reference in
    variants that differ by rounding alone (other chunks, frequencies 2 ulp of float32 away, weights rounded where a
    fold rounds them, another precision), each with the engine for its head, None for the source. formula: of the source
    with log-n itself, where the output has its approximation. faint: of the reference with attention scores 2 % larger,
    empty where a model has no softmax scale. baked: of the output. speed: tokens per second of whole runs.
    """

    control: list[Tensor] = field(default_factory=list)
    reference: list[Tensor] = field(default_factory=list)
    noise_runs: list[tuple[TransformersEngine | None, list[Tensor]]] = field(default_factory=list)
    formula: list[Tensor] = field(default_factory=list)
    faint: list[Tensor] = field(default_factory=list)
    baked: list[Tensor] = field(default_factory=list)
    speed: dict[str, float] = field(default_factory=dict)

    def by_precision(self, values: list[float]) -> tuple[list[float], list[float]]:
        """Splits values, one per entry of `noise_runs`, into those of the source's precision and those of another."""
        pairs = list(zip(self.noise_runs, values, strict=True))
        return [value for (own, _), value in pairs if own is None], [value for (own, _), value in pairs if own]

    def timed(self, name: str, runs: list[TokenRun], read: Callable[[TokenRun], Tensor]) -> list[Tensor]:
        """Reads every run, and keeps the speed of a whole run.

        name: the key in `speed`. runs: to read. read: from a run to its hidden states, which are returned.
        """
        found = []
        for run in runs:
            begin = time.perf_counter()
            found.append(read(run))
            if run.kind == "whole" and len(found[-1]) == len(run.kept):
                self.speed[name] = round(len(run.ids) / (time.perf_counter() - begin), 1)
        return found


@dataclass(frozen=True)
class ComparisonSpec:
    """What is compared, how it runs, and the callbacks of the caller.

    comparison: the output and its source. settings: how to run. progress: callbacks. score_factor: by which attention
    scores are multiplied in every model that is read. all_keys: whether indexers choose all keys in every model.
    """

    comparison: Comparison
    settings: Settings
    progress: Progress
    score_factor: float = 1.0
    all_keys: bool = False

    def patched(
        self,
        engine: TransformersEngine,
        run: TokenRun,
        chunk: int = 0,
        schedule: Schedule | None = None,
        scale: LogN | QueryScaling | None = None,
    ) -> Tensor:
        """Hidden states of the source patched to the schedule, [len(run.kept), hidden_size]; the patch is undone.

        engine: the source. run: tokens to read. chunk: tokens at a time, 0 for the engine's own. schedule, scale: in
        place of those of the comparison.
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

    def plain(self, engine: TransformersEngine, run: TokenRun) -> Tensor:
        """Hidden states of a model as it is, [len(run.kept), hidden_size]. Only whole runs can be stopped early."""
        heard = self.progress if run.kind == "whole" else Progress(advance=self.progress.advance)
        undone = [scale_scores(engine.model, self.score_factor)]
        if self.all_keys:
            undone.append(choose_all_keys(engine.model))
        try:
            return engine.hidden_states(run.ids, run.positions, run.kept, heard)
        finally:
            for undo in undone:
                undo()


def read_source(engine: TransformersEngine, spec: ComparisonSpec, runs: list[TokenRun], dtype: str) -> HiddenStates:
    """The hidden states of the source in all variants that a comparison needs.

    engine: the source; at the end the weights that a fold rounds are rounded in it. spec: what is compared, and how.
    runs: the tokens to read. dtype: that the engine runs in.
    """
    case, samples, states = spec.comparison, [run for run in runs if run.kind == "spread"], HiddenStates()
    states.control = [spec.plain(engine, run) for run in samples]
    if isinstance(case.scale, QueryScaling) and case.schedule.log_n is not None:
        states.formula = [spec.patched(engine, run, scale=case.schedule.log_n) for run in samples]
    states.reference = states.timed("reference", runs, lambda run: spec.patched(engine, run))
    if case.schedule.short_inv_freq is None and engine.chunked:  # else the list changes with the chunk: no noise
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
) -> tuple[TransformersEngine, list[Tensor]]:
    """An entry of `noise_runs` in another precision.

    engine: the source in that precision, of which only the head stays. spec: what is compared. runs: of which the
    spread ones are read.
    """
    found = [spec.patched(engine, run) for run in runs if run.kind == "spread"]
    return engine.without_layers(), found
