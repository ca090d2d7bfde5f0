"""Hidden states of both sides of a comparison: the source, in all its parts, and the baked checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..engines.transformers.backbone import hidden_states, keep_head
from ..engines.transformers.patch import nudged, patch, patched_at, round_weights, scale_queries
from ..rope.log_n import LogN, Staircase
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..sources import Source
from .comparison import query_module
from .sampling.token_runs import Passage
from .settings import Settings, Watch

PARTS = 3  # chunks of a spread run, for the noise floor


@dataclass
class Sides:
    """Hidden states per passage; all but `reference` and `baked` for spread runs only.

    control: the source left alone. reference: the source with the schedule. again: the same in ways that make no
    difference but rounding: other chunks, frequencies two steps of float32 away, weights rounded where a fold has
    rounded them, and another precision; each with its head, None for the source's own. formula: with log-n itself where
    the reference has the steps that stand for it. speed: tokens per second of whole runs.
    """

    control: list[Any] = field(default_factory=list)
    reference: list[Any] = field(default_factory=list)
    again: list[tuple[Any, list[Any]]] = field(default_factory=list)
    formula: list[Any] = field(default_factory=list)
    baked: list[Any] = field(default_factory=list)
    speed: dict[str, float] = field(default_factory=dict)

    def parted(self, values: list[float]) -> tuple[list[float], list[float]]:
        """What belongs to `again`, parted into the source's own precision and another."""
        pairs = list(zip(self.again, values, strict=True))
        return [value for (own, _), value in pairs if own is None], [value for (own, _), value in pairs if own]

    def run(self, name: str, passages: list[Passage], run: Callable[[Passage], Any]) -> list[Any]:
        """Runs every passage, and notes the speed of one over every position."""
        found = []
        for passage in passages:
            begin = time.perf_counter()
            found.append(run(passage))
            if passage.kind == "whole" and len(found[-1]) == len(passage.kept):
                self.speed[name] = round(len(passage.ids) / (time.perf_counter() - begin), 1)
        return found


@dataclass(frozen=True)
class Case:
    """What is compared, and how. spec: the source's own. scale: by what the reference scales queries."""

    source: Source
    schedule: Schedule
    spec: RopeSpec
    scale: LogN | Staircase | None
    settings: Settings
    watch: Watch


def read_source(model: Any, case: Case, folded: list[str], passages: list[Passage]) -> Sides:
    """Everything that the source has to say. The model is patched on the way, and not of use afterwards but its head.

    folded: names of weights that a fold has rounded.
    """
    samples, sides, schedule = [p for p in passages if p.kind == "spread"], Sides(), case.schedule
    queries = query_module(case.source)

    def read(passage: Passage, chunk: int = 0, wanted: Schedule = schedule) -> Any:
        return _patched(model, case, passage, chunk, wanted)

    sides.control = [states(model, passage, case.settings.chunk, case.watch) for passage in samples]
    if isinstance(case.scale, Staircase) and schedule.log_n is not None:
        undo = scale_queries(model, schedule.log_n, queries)
        sides.formula = [read(passage) for passage in samples]
        undo()
    if case.scale is not None:
        scale_queries(model, case.scale, queries)
    sides.reference = sides.run("reference", passages, read)
    if schedule.short_inv_freq is None:  # else the list in force changes with the chunk, which is no noise
        sides.again.append((None, [read(passage, -(-len(passage.ids) // PARTS)) for passage in samples]))
    sides.again.append((None, [read(passage, wanted=nudged(schedule)) for passage in samples]))
    if folded:
        round_weights(model, {name: case.source.tensors[name].dtype for name in folded})
        sides.again.append((None, [read(passage) for passage in samples]))
    return sides


def read_again(model: Any, case: Case, passages: list[Passage]) -> tuple[Any, list[Any]]:
    """The reference of a model in another precision: its head, and hidden states of the spread runs."""
    if case.scale is not None:
        scale_queries(model, case.scale, query_module(case.source))
    found = [_patched(model, case, passage) for passage in passages if passage.kind == "spread"]
    return keep_head(model), found


def _patched(model: Any, case: Case, passage: Passage, chunk: int = 0, wanted: Schedule | None = None) -> Any:
    def prepare(last: int) -> None:
        patch(model, patched_at(wanted or case.schedule, last), case.spec)

    return states(model, passage, chunk or case.settings.chunk, case.watch, prepare)


def states(
    model: Any, passage: Passage, chunk: int, watch: Watch, prepare: Callable[[int], None] = lambda last: None
) -> Any:
    """Hidden states of a passage; only runs over every position can be stopped."""
    stopped = watch.stopped if passage.kind == "whole" else lambda: False
    return hidden_states(model, passage.ids, passage.positions, passage.kept, chunk, prepare, watch.advance, stopped)
