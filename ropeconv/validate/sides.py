"""Hidden states of both sides of a comparison: the source, in all its parts, and the baked checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..rope.log_n import LogN, Staircase
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..sources import Source
from .hidden import hidden_states
from .passages import Passage
from .reference import nudged, patch, patched_at, round_weights, scale_queries
from .schedule import query_module
from .settings import Settings, Watch

PARTS = 3  # chunks of a spread run, for the noise floor


@dataclass
class Sides:
    """Hidden states per passage; all but `reference` and `baked` for spread runs only.

    control: the source left alone. reference: the source with the schedule. again: the same in ways that make no
    difference but rounding: other chunks, frequencies two steps of float32 away, and weights rounded where a fold has
    rounded them. formula: with log-n itself where the reference has the steps that stand for it. speed: tokens per
    second of whole runs.
    """

    control: list[Any] = field(default_factory=list)
    reference: list[Any] = field(default_factory=list)
    again: list[list[Any]] = field(default_factory=list)
    formula: list[Any] = field(default_factory=list)
    baked: list[Any] = field(default_factory=list)
    speed: dict[str, float] = field(default_factory=dict)

    def run(self, name: str, passages: list[Passage], run: Callable[[Passage], Any]) -> list[Any]:
        """Runs every passage, and notes the speed of one over every position."""
        found = []
        for passage in passages:
            begin = time.perf_counter()
            found.append(run(passage))
            if passage.kind == "whole" and len(found[-1]) == len(passage.kept):
                self.speed[name] = round(len(passage.ids) / (time.perf_counter() - begin), 1)
        return found


def read_source(
    model: Any,
    source: Source,
    schedule: Schedule,
    spec: RopeSpec,
    scale: LogN | Staircase | None,
    folded: list[str],
    passages: list[Passage],
    settings: Settings,
    watch: Watch,
) -> Sides:
    """Everything that the source has to say. The model is patched on the way, and not of use afterwards but its head.

    scale: by what the reference scales queries. folded: names of weights that a fold has rounded.
    """
    samples, sides, queries = [p for p in passages if p.kind == "spread"], Sides(), query_module(source)

    def read(passage: Passage, chunk: int = 0, wanted: Schedule = schedule) -> Any:
        return states(
            model, passage, chunk or settings.chunk, watch, lambda last: patch(model, patched_at(wanted, last), spec)
        )

    sides.control = [states(model, passage, settings.chunk, watch) for passage in samples]
    if isinstance(scale, Staircase) and schedule.log_n is not None:
        undo = scale_queries(model, schedule.log_n, queries)
        sides.formula = [read(passage) for passage in samples]
        undo()
    if scale is not None:
        scale_queries(model, scale, queries)
    sides.reference = sides.run("reference", passages, read)
    if schedule.short_inv_freq is None:  # else the list in force changes with the chunk, which is no noise
        sides.again.append([read(passage, -(-len(passage.ids) // PARTS)) for passage in samples])
    sides.again.append([read(passage, wanted=nudged(schedule)) for passage in samples])
    if folded:
        round_weights(model, {name: source.tensors[name].dtype for name in folded})
        sides.again.append([read(passage) for passage in samples])
    return sides


def read_reference(
    model: Any, source: Source, schedule: Schedule, spec: RopeSpec, scale: LogN | Staircase | None, passage: Passage,
    settings: Settings, watch: Watch,
) -> Any:  # fmt: skip
    """The reference's hidden states of one passage, of a model in another precision."""
    patch(model, patched_at(schedule, passage.positions[-1]), spec)
    if scale is not None:
        scale_queries(model, scale, query_module(source))
    return states(model, passage, settings.chunk, watch)


def states(
    model: Any, passage: Passage, chunk: int, watch: Watch, prepare: Callable[[int], None] = lambda last: None
) -> Any:
    """Hidden states of a passage; only runs over every position can be stopped."""
    stopped = watch.stopped if passage.kind == "whole" else lambda: False
    return hidden_states(model, passage.ids, passage.positions, passage.kept, chunk, prepare, watch.advance, stopped)
