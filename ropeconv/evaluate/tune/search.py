"""Factors per pair by gradient: the loss on long windows, differentiated through cos and sin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...engines.engine import Progress
from ...rope.errors import RopeconvError
from ...rope.spec import RopeSpec
from .result import Candidate, Start
from .scorer import Difference, PassLine, Scorer, TextWindow

RATE = 0.04
"""Largest change of a log divisor in one step, of pairs that turn at most once within the trained context."""
BATCH = 4
CHECKED = 10
"""Steps between two looks at all windows."""
PATIENCE = 3
"""Looks without a better schedule, beyond its standard error, after which a search ends."""
TUNED = "tuned factors"
"""The name of what is found, in tables."""


@dataclass
class Task:
    """What a search works on.

    start: the model and the context. model: of transformers, loaded. source: its RoPE as it is. scorer: reads windows.
    formulas: that it may begin with, the one to begin with first. steps: at most. attention_factor: where it is not to
    be searched for. regularise: weight of the squared distance of log divisors to the first formula. seed: of random
    choices. progress: callbacks; advance counts steps. trace: loss on the windows after each step, minus that of the
    first formula, in nats per token. best: candidate so far. improved: the step in which it became better by more than
    its standard error.
    """

    start: Start
    model: Any
    source: RopeSpec
    scorer: Scorer
    formulas: Sequence[Candidate]
    steps: int
    attention_factor: float | None = None
    regularise: float = 0.0
    seed: int = 0
    progress: Progress = field(default_factory=Progress)
    trace: list[float] = field(default_factory=list)
    best: Candidate = field(init=False)
    improved: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.best = self.first

    @property
    def first(self) -> Candidate:
        """The formula that a search begins with."""
        return self.formulas[0]

    @property
    def initial(self) -> list[float]:
        """Logarithms of the divisors of the first formula, and of the attention factor."""
        schedule = self.first.schedule
        factor = schedule.attention_factor if self.attention_factor is None else self.attention_factor
        return [*np.log(self.start.divisors(schedule)).tolist(), math.log(factor)]

    def gain(self, candidate: Candidate) -> Difference:
        """How a candidate compares with the first formula on the windows of the search."""
        return Difference(self.scorer.values(candidate.schedule) - self.scorer.values(self.first.schedule))

    def offer(self, found: Candidate) -> None:
        """Takes a candidate as the best one where it loses less on all windows."""
        raced = self.scorer.race(found.schedule, self.best.schedule)
        if raced.mean < 0:
            self.best = found
            if -raced.mean > raced.error:
                self.improved = len(self.trace)
                gain = self.gain(found)
                said = f"Step {len(self.trace) + 1}: {gain.mean:+.4f} ± {gain.error:.4f} nat per token on these windows"
                self.progress.note(f"{said}, against {self.first.name}.")

    def ended(self) -> bool:
        """Notes the end of a step, and returns whether it is the last one."""
        self.trace.append(self.gain(self.best).mean)
        self.progress.advance(1)
        return self.progress.stopped() or len(self.trace) > self.improved + PATIENCE * CHECKED


def search(task: Task) -> Candidate:
    """Return the best candidate, which may be a formula, after Adam on the logarithms of divisors and attention factor.

    A pair that turns n times within the trained context learns at 1/n of the rate, since its phase at a distance moves
    n times as fast: phases of all pairs move alike then. All weights are frozen.
    """
    import torch

    start = task.start
    speed = np.minimum(1.0, 2 * math.pi / (start.base * start.spec.original_context))
    moved = torch.zeros(len(speed), dtype=torch.float64, requires_grad=True)
    free = task.attention_factor is None
    *logs, factor = task.initial
    scaled = torch.tensor(factor, dtype=torch.float64, requires_grad=free)
    optimizer = torch.optim.Adam([moved] + [scaled] * free, RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, task.steps, RATE / 20)
    draw, order = np.random.default_rng(task.seed), list[int]()

    def point() -> list[float]:
        """Logarithms of the divisors, and of the attention factor."""
        return [*(logs + moved.detach().numpy() * speed), float(scaled.detach())]

    for number in range(task.steps):
        while len(order) < BATCH:
            order += draw.permutation(len(task.scorer.windows)).tolist()
        batch, order = order[:BATCH], order[BATCH:]
        at = point()
        slope = np.mean([gradient(task, at, task.scorer.windows[index]).numbers for index in batch], axis=0)
        moved.grad = torch.from_numpy(slope[:-1] * speed)
        scaled.grad = torch.tensor(slope[-1]) if free else None
        if task.regularise:
            (task.regularise * (moved * torch.from_numpy(speed)).square().mean()).backward()
        optimizer.step()
        schedule.step()
        if (number + 1) % CHECKED == 0 or number + 1 == task.steps:
            *divisors, factor = np.exp(point()).tolist()
            task.offer(start.factors(divisors, factor, TUNED))
        if task.ended():
            break
    return task.best


def gradient(task: Task, at: Sequence[float], window: TextWindow) -> PassLine:
    """The pass of `slopes`, from the journal where that has it."""
    scorer = task.scorer
    what = ("gradient", task.first.schedule.digest, np.array(at).tobytes().hex(), repr(scorer.price), window.digest)
    return scorer.passes.line(what, lambda: slopes(task, at, window))


def slopes(task: Task, at: Sequence[float], window: TextWindow) -> list[float]:
    """The gradient of the loss of a window with respect to `at`, in nats per token.

    task: with the model. at: logarithms of the divisors of the pairs that rotate, and of the attention factor. window:
    to read. Raises RopeconvError where no finite gradient arrives.
    """
    import torch

    from ...engines.transformers.backbone import differentiable

    start = task.start
    point = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    with differentiable(task.model, task.first.schedule, task.source) as engine:
        inv_freq = torch.from_numpy(start.base) / point[:-1].exp()
        padding = start.spec.rotary_dim // 2 - len(inv_freq)
        engine.use(torch.nn.functional.pad(inv_freq, (0, padding)), point[-1].exp())
        loss(engine, task.scorer, window).backward()
    if point.grad is None or not torch.isfinite(point.grad).all():
        raise RopeconvError("no finite gradient arrives at the frequencies of this model, so it cannot be tuned")
    found: list[float] = point.grad.tolist()
    return found


def loss(engine: Any, scorer: Scorer, window: TextWindow) -> Any:
    """The loss of a window as a tensor with a gradient, in nats per token.

    engine: `Differentiable`. scorer: with the price of its parts. window: to read.
    """
    price, case = scorer.price, window.text
    tokens = engine.losses(case.ids.tolist(), case.targets.tolist())
    found = tokens[window.beyond :].mean()
    if price.inside and window.beyond:
        found = found + price.inside * tokens[: window.beyond].mean()
    if price.needle and window.needle is not None:
        asked = window.needle
        found = found + price.needle * engine.losses(asked.ids.tolist(), asked.targets.tolist()).mean()
    return found
