"""A model whose loss is a known function of its schedule, and Task for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ropeconv.engines import Engine, Progress, TokenLosses
from ropeconv.evaluate.case import Case
from ropeconv.rope.forms import Plain
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec
from ropeconv.tune.candidate import Start
from ropeconv.tune.passes import Passes
from ropeconv.tune.scorer import Price, Scorer
from ropeconv.tune.search import Task
from ropeconv.tune.windows import Window

SPEC = RopeSpec(head_dim=64, rotary_dim=64, form=Plain(10_000.0), original_context=1024, context=1024)
Loss = Callable[[Schedule, int], float]


class Known(Engine):
    """An engine whose tokens all lose the same, by a function of the schedule and of the number of the window."""

    gives = frozenset({"token_losses"})

    def __init__(self, loss: Loss) -> None:
        self.loss, self.schedule, self.read = loss, SPEC.current(), list[int]()

    def token_losses(self, ids: Any, targets: Any, progress: Progress | None = None) -> TokenLosses:
        self.read.append(ids[0])
        return TokenLosses(np.full(len(targets), self.loss(self.schedule, ids[0])), np.ones(len(targets), bool))

    @contextmanager
    def patched(self, schedule: Schedule) -> Iterator[Engine]:
        self.schedule = schedule
        yield self


def window(number: int) -> Window:
    """A window whose tokens are its number, with four targets inside the trained context and four beyond it."""
    ids, targets = np.full(16, number, np.int32), np.arange(8, 16, dtype=np.int32)
    return Window(Case("tune", 16, number, number, ids, targets), 4)


def task(engine: Known, passes: Passes = Passes(), steps: int = 60, **given: Any) -> Task:
    start = Start(SPEC, 4096, lambda recipe: recipe.schedule(SPEC))
    scorer = Scorer(engine, [window(number) for number in range(6)], Price(inside=0.0), passes)
    formulas = sorted(start.formulas(), key=lambda one: float(scorer.values(one.schedule).mean()))
    return Task(start, None, SPEC, scorer, formulas, steps, **given)
