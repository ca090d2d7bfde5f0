"""Search for a divisor per pair by the gradient of the loss on long windows through cos and sin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...engines.engine import Progress
from ...options import TuneOptions
from ...rope.errors import RopeconvError
from ..statistics import Sample
from .result import Candidate, Start
from .scorer import PassLine, Scorer, TextWindow

if TYPE_CHECKING:
    from torch import Tensor

    from ...engines.transformers.differentiable import Differentiable

RATE = 0.04
"""Largest change of a log divisor in one step, for pairs with at most one period within the trained
context.
"""
BATCH = 4
CHECKED = 10
"""Steps between two evaluations on all windows."""
PATIENCE = 3
"""Evaluations after which a search ends if no schedule was better by more than its standard
error.
"""
TUNED = "tuned factors"
"""The name of the result in tables."""


@dataclass
class Task:
    """A search and its state.

    formulas: the one to begin with first. progress: advance counts steps. trace: loss on the
    windows after each step, minus that of the first formula, in nats per token. best: the best
    candidate. improved: the step in which it became better by more than its standard error.
    """

    start: Start
    scorer: Scorer
    formulas: Sequence[Candidate]
    settings: TuneOptions
    progress: Progress = field(default_factory=Progress)
    trace: list[float] = field(default_factory=list)
    best: Candidate = field(init=False)
    improved: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.best = self.first

    @property
    def first(self) -> Candidate:
        """The formula to begin with."""
        return self.formulas[0]

    @property
    def initial(self) -> list[float]:
        """Logarithms of the divisors of the first formula, and of the attention factor."""
        schedule = self.first.schedule
        kept = self.settings.attention_factor
        factor = schedule.attention_factor if kept is None else kept
        return [*np.log(self.start.divisors(schedule)).tolist(), math.log(factor)]

    def gain(self, candidate: Candidate) -> Sample:
        """The difference of a candidate to the first formula on the windows of the search."""
        return self.scorer.difference(candidate.schedule, self.first.schedule)

    def offer(self, candidate: Candidate) -> None:
        """Keep a candidate as the best one if it loses less on all windows."""
        difference = self.scorer.race(candidate.schedule, self.best.schedule)
        if difference.mean < 0:
            self.best = candidate
            if difference.error is not None and -difference.mean > difference.error:
                self.improved, gain = len(self.trace), self.gain(candidate)
                self.progress.note(
                    f"Step {len(self.trace) + 1}: {gain.mean:+.4f} ± {gain.error:.4f} nat per token"
                    f" on these windows, against {self.first.name}."
                )

    def ended(self) -> bool:
        """Count a step, and return whether it is the last one."""
        self.trace.append(self.gain(self.best).mean)
        self.progress.advance(1)
        return self.progress.stopped() or len(self.trace) > self.improved + PATIENCE * CHECKED


def search(task: Task) -> Candidate:
    """Return the best candidate, which may be a formula, after Adam on the logarithms of divisors
    and attention factor.

    A pair with n periods within the trained context learns at 1/n of the rate, since its phase at a
    distance changes n times as fast. All weights are frozen.
    """
    import torch

    start, settings = task.start, task.settings
    speed = np.minimum(1.0, 2 * math.pi / (start.base * start.spec.original_context))
    moved = torch.zeros(len(speed), dtype=torch.float64, requires_grad=True)
    free = settings.attention_factor is None
    *logs, factor = task.initial
    scaled = torch.tensor(factor, dtype=torch.float64, requires_grad=free)
    optimizer = torch.optim.Adam([moved] + [scaled] * free, RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps, RATE / 20)
    draw = np.random.default_rng(settings.seed)
    order = list[int]()

    def point() -> list[float]:
        """Logarithms of the divisors, and of the attention factor."""
        return [*(logs + moved.detach().numpy() * speed), float(scaled.detach())]

    for number in range(settings.steps):
        while len(order) < BATCH:
            order += draw.permutation(len(task.scorer.windows)).tolist()
        batch = order[:BATCH]
        order = order[BATCH:]
        at = point()
        slope = np.mean(
            [gradient(task, at, task.scorer.windows[index]).numbers for index in batch], axis=0
        )
        moved.grad = torch.from_numpy(slope[:-1] * speed)
        scaled.grad = torch.tensor(slope[-1]) if free else None
        if settings.regularise:
            (settings.regularise * (moved * torch.from_numpy(speed)).square().mean()).backward()
        optimizer.step()
        schedule.step()
        if (number + 1) % CHECKED == 0 or number + 1 == settings.steps:
            *divisors, factor = np.exp(point()).tolist()
            task.offer(start.factors(divisors, factor, TUNED))
        if task.ended():
            break
    return task.best


def gradient(task: Task, at: Sequence[float], window: TextWindow) -> PassLine:
    """The pass of `slopes`, which the journal may have."""
    scorer = task.scorer
    parts = (
        "gradient",
        task.first.schedule.digest,
        np.array(at).tobytes().hex(),
        repr(scorer.price),
        window.digest,
    )
    return scorer.passes.line(parts, lambda: slopes(task, at, window))


def slopes(task: Task, at: Sequence[float], window: TextWindow) -> list[float]:
    """The gradient of the loss of a window with respect to `at`, in nats per token.

    at: logarithms of the divisors of the pairs that rotate, and of the attention factor. Raises
    RopeconvError where the gradient is not finite.
    """
    import torch

    from ...engines.transformers.differentiable import differentiable

    start, runner = task.start, task.scorer.runner
    point = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    with differentiable(runner.loaded.model, task.first.schedule, runner.inspection.spec) as engine:
        inv_freq = torch.from_numpy(start.base) / point[:-1].exp()
        padding = start.spec.rotary_dim // 2 - len(inv_freq)
        engine.use(torch.nn.functional.pad(inv_freq, (0, padding)), point[-1].exp())
        loss(engine, task.scorer, window).backward()
    if point.grad is None or not torch.isfinite(point.grad).all():
        raise RopeconvError(
            "the frequencies of this model have no finite gradient, so it cannot be tuned"
        )
    slope: list[float] = point.grad.tolist()
    return slope


def loss(engine: Differentiable, scorer: Scorer, window: TextWindow) -> Tensor:
    """The loss of a window with a gradient, in nats per token, a scalar."""
    price = scorer.price
    case = window.text
    needle = window.needle
    tokens = engine.losses(case.ids.tolist(), case.targets.tolist())
    total = tokens[window.beyond :].mean()
    if price.inside and window.beyond:
        total = total + price.inside * tokens[: window.beyond].mean()
    if price.needle and needle is not None:
        total = (
            total
            + price.needle * engine.losses(needle.ids.tolist(), needle.targets.tolist()).mean()
        )
    return total
