"""Factors per pair by gradient: the loss on long windows, differentiated through cos and sin."""

from __future__ import annotations

import math
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

        from ...engines.transformers.differentiable import differentiable

        start, first = task.start, task.first.schedule
        turns = start.base * start.spec.original_context / (2 * math.pi)
        speed = torch.from_numpy(np.minimum(1.0, 1.0 / turns))
        moved = torch.zeros(len(turns), dtype=torch.float64, requires_grad=True)
        free = task.attention_factor is None
        begun = first.attention_factor if task.attention_factor is None else task.attention_factor
        scaled = torch.tensor(math.log(begun), dtype=torch.float64, requires_grad=free)
        steps = task.steps or self.steps
        optimizer = torch.optim.Adam([moved] + [scaled] * free, RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE / 20)
        draw, order = np.random.default_rng(task.seed), list[int]()
        logs, padding = torch.from_numpy(np.log(start.divisors(first))), start.spec.rotary_dim // 2 - len(turns)

        def found() -> Candidate:
            divisors = np.exp((logs + moved.detach() * speed).numpy())
            return start.factors(divisors, math.exp(float(scaled.detach())), "tuned factors")

        for number in range(steps):
            while len(order) < BATCH:
                order += draw.permutation(len(task.scorer.windows)).tolist()
            batch, order = order[:BATCH], order[BATCH:]
            optimizer.zero_grad()
            with differentiable(task.model, first, task.source) as engine:
                for index in batch:
                    inv_freq = torch.from_numpy(start.base) / (logs + moved * speed).exp()
                    engine.use(torch.nn.functional.pad(inv_freq, (0, padding)), scaled.exp())
                    (loss(engine, task.scorer, task.scorer.windows[index]) / BATCH).backward()
            if moved.grad is None or not torch.isfinite(moved.grad).all():
                raise RopeconvError(
                    "no finite gradient arrives at the frequencies of this model; choose --by evolution"
                )
            if task.regularise:
                (task.regularise * (moved * speed).square().mean()).backward()
            optimizer.step()
            schedule.step()
            if (number + 1) % CHECKED == 0 or number + 1 == steps:
                task.offer(found())
            if task.ended(PATIENCE * CHECKED):
                break
        return task.best


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
