"""Factors per pair by gradient: the loss on long windows, differentiated through cos and sin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import RopeconvError
from ..candidate import Candidate
from ..scorer import Scorer
from ..windows import Window
from .search import Search, Task, register

RATE = 0.04
"""Largest change of a log divisor in one step, of pairs that turn at most once within the trained context."""
BATCH = 4
CHECKED = 10
"""Steps between two looks at all windows."""
PATIENCE = 3
"""Looks without a better schedule, beyond its standard error, after which a search ends."""


@register
class Gradient(Search):
    """Adam on the logarithms of the divisors and of the attention factor, with all weights frozen.

    A pair that turns n times within the trained context learns at 1/n of the rate, since its phase at a distance moves
    n times as fast: phases of all pairs move alike then.
    """

    name = "gradient"
    summary = "divisors per pair by the gradient of the loss"
    over = "factors"
    steps = 60

    def run(self, task: Task) -> Candidate:
        import torch

        start, first = task.start, task.first.schedule
        speed = np.minimum(1.0, 2 * math.pi / (start.base * start.spec.original_context))
        moved = torch.zeros(len(speed), dtype=torch.float64, requires_grad=True)
        free = task.attention_factor is None
        begun = first.attention_factor if task.attention_factor is None else task.attention_factor
        scaled = torch.tensor(math.log(begun), dtype=torch.float64, requires_grad=free)
        steps = task.steps or self.steps
        optimizer = torch.optim.Adam([moved] + [scaled] * free, RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE / 20)
        draw, order = np.random.default_rng(task.seed), list[int]()
        logs = np.log(start.divisors(first))

        def point() -> list[float]:
            """Logarithms of the divisors, and of the attention factor."""
            return [*(logs + moved.detach().numpy() * speed), float(scaled.detach())]

        for number in range(steps):
            while len(order) < BATCH:
                order += draw.permutation(len(task.scorer.windows)).tolist()
            batch, order = order[:BATCH], order[BATCH:]
            at = point()
            slopes = np.mean([_kept(task, at, task.scorer.windows[index]) for index in batch], axis=0)
            moved.grad = torch.from_numpy(slopes[:-1] * speed)
            scaled.grad = torch.tensor(slopes[-1]) if free else None
            if task.regularise:
                (task.regularise * (moved * torch.from_numpy(speed)).square().mean()).backward()
            optimizer.step()
            schedule.step()
            if (number + 1) % CHECKED == 0 or number + 1 == steps:
                *divisors, factor = np.exp(point()).tolist()
                task.offer(start.factors(divisors, factor, "tuned factors"))
            if task.ended(PATIENCE * CHECKED):
                break
        return task.best


def _kept(task: Task, at: Sequence[float], window: Window) -> list[float]:
    """`slopes`, where the journal does not have them."""
    scorer = task.scorer
    what = ("gradient", task.first.schedule.digest, np.array(at).tobytes().hex(), repr(scorer.price), window.digest)
    return scorer.passes.numbers(what, lambda: slopes(task, at, window))


def slopes(task: Task, at: Sequence[float], window: Window) -> list[float]:
    """The gradient of the loss of a window with respect to `at`, in nats per token.

    task: with the model. at: logarithms of the divisors of the pairs that rotate, and of the attention factor. window:
    to read. Raises RopeconvError where no finite gradient arrives.
    """
    import torch

    from ...engines.transformers.differentiable import differentiable

    start = task.start
    point = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    with differentiable(task.model, task.first.schedule, task.source) as engine:
        inv_freq = torch.from_numpy(start.base) / point[:-1].exp()
        padding = start.spec.rotary_dim // 2 - len(inv_freq)
        engine.use(torch.nn.functional.pad(inv_freq, (0, padding)), point[-1].exp())
        loss(engine, task.scorer, window).backward()
    if point.grad is None or not torch.isfinite(point.grad).all():
        raise RopeconvError("no finite gradient arrives at the frequencies of this model; choose --by evolution")
    found: list[float] = point.grad.tolist()
    return found


def loss(engine: Any, scorer: Scorer, window: Window) -> Any:
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
