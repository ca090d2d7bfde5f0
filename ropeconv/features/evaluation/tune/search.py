"""Search for a divisor per pair by the gradient of the loss on long windows through cos and sin.

`search` is the loop, and `slopes` computes a gradient.

The search changes one list of numbers, which is called `logs` in this module: the logarithm of the
divisor of each pair that rotates, then the logarithm of the attention factor. A model with 64 pairs
has 65 of them. Pair i gets the frequency `base[i] / exp(logs[i])`, so a pair with 0 is not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ropeconv.bake.proof import Sample
from ropeconv.engines.engine import Progress
from ropeconv.rope.errors import RopeconvError

from ..options import TuneOptions
from .result import Candidate, Start
from .scorer import PassLine, Scorer, TextWindow

if TYPE_CHECKING:
    from torch import Tensor

    from ropeconv.engines.transformers.differentiable import Differentiable

LEARNING_RATE = 0.04
"""Largest change of a log divisor in one step.

The limit is for pairs with at most one period within the trained context.
"""
WINDOWS_PER_STEP = 4
"""Windows whose gradients are averaged in a step."""
STEPS_BETWEEN_CHECKS = 10
"""Steps between two evaluations on all windows."""
CHECKS_WITHOUT_GAIN = 3
"""Evaluations after which a search ends if none was better by more than its standard error."""
RESULT_NAME = "tuned factors"
"""The name of the result in tables."""


@dataclass
class Task:
    """A search and its state."""

    start: Start
    """The unscaled model, from which candidates are made."""

    scorer: Scorer
    """Measures the loss of candidates on the windows of the search."""

    formulas: Sequence[Candidate]
    """The formulas, the one to begin with first."""

    settings: TuneOptions

    progress: Progress = field(default_factory=Progress)
    """Callbacks; advance counts steps."""

    trace: list[float] = field(default_factory=list)
    """The loss after each step, minus that of the first formula, in nats per token."""

    best: Candidate = field(init=False)
    """The best candidate."""

    last_gain_step: int = field(init=False, default=0)
    """The last step in which it became better by more than its standard error."""

    def __post_init__(self) -> None:
        self.best = self.first_formula

    @property
    def first_formula(self) -> Candidate:
        """The formula to begin with, such as YaRN."""
        return self.formulas[0]

    @property
    def initial(self) -> list[float]:
        """Logarithms of the divisors of the first formula, and of the attention factor."""
        schedule = self.first_formula.schedule
        factor = self.settings.attention_factor
        if factor is None:
            factor = schedule.attention_factor
        return [*np.log(self.start.divisors(schedule)).tolist(), math.log(factor)]

    def gain(self, candidate: Candidate) -> Sample:
        """Return the difference of a candidate to the first formula on the searched windows."""
        return self.scorer.difference(candidate.schedule, self.first_formula.schedule)

    def offer(self, candidate: Candidate) -> None:
        """Keep a candidate as the best one if its loss on all windows is lower.

        Args:
            candidate: Frequencies and an attention factor that the search has reached.
        """
        # the loss of the candidate minus the loss of the best one, a mean with its standard error
        difference = self.scorer.compare_with_best(candidate.schedule, self.best.schedule)
        if difference.mean >= 0:  # the loss is not lower
            return
        self.best = candidate

        # the search continues while gains are above their standard error (`end_step`)
        is_clear_gain = difference.error is not None and -difference.mean > difference.error
        if is_clear_gain:
            finished_steps = len(self.trace)
            self.last_gain_step = finished_steps
            gain = self.gain(candidate)
            self.progress.note(
                f"Step {finished_steps + 1}: {gain.mean:+z.4f} ± {gain.error:.4f} nat per token"
                f" on these windows, against {self.first_formula.name}."
            )

    def end_step(self) -> bool:
        """Count a step, and return whether it is the last one."""
        self.trace.append(self.gain(self.best).mean)
        self.progress.advance(1)
        steps_without_gain = len(self.trace) - self.last_gain_step
        is_stuck = steps_without_gain > CHECKS_WITHOUT_GAIN * STEPS_BETWEEN_CHECKS
        return self.progress.stopped() or is_stuck


def search(task: Task) -> Candidate:
    """Search divisors of the frequencies and the attention factor; return the best candidate.

    Adam changes the logarithms of the divisors and of the factor to lower the loss; all weights of
    the model are frozen. The search begins with a formula, which is returned where no candidate is
    better.

    Adam has one rate for all parameters, and pairs differ: one that turns n times within the
    trained context changes its phase n times as fast as one that turns once. So each pair has a
    speed s (`_speeds`), and Adam's parameter is u, with log(divisor) = log(first divisor) + s u. By
    the chain rule, d loss / d u = s (d loss / d log(divisor)).
    """
    import torch

    # where the search begins: the divisors and the factor of a formula, as logarithms
    start = task.start
    settings = task.settings
    speeds = _speeds(start)
    *first_divisor_logs, first_factor_log = task.initial

    # what Adam changes: u of each pair, and the logarithm of the attention factor unless the user
    # fixed it
    u = torch.zeros(len(speeds), dtype=torch.float64, requires_grad=True)
    learns_factor = settings.attention_factor is None
    factor_log = torch.tensor(first_factor_log, dtype=torch.float64, requires_grad=learns_factor)
    learned = [u, factor_log] if learns_factor else [u]
    optimizer = torch.optim.Adam(learned, LEARNING_RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, settings.steps, LEARNING_RATE / 20
    )

    def current_logs() -> list[float]:
        """Return the logarithms that the search has reached: of each divisor, then the factor."""
        divisor_logs = first_divisor_logs + u.detach().numpy() * speeds
        return [*divisor_logs, float(factor_log.detach())]

    batches = _batches(len(task.scorer.windows), settings.seed)
    for step in range(1, settings.steps + 1):
        # The gradient of the loss. It comes from the journal where an earlier run has computed it,
        # so it is set here instead of by backward(). Its last number is that of the factor.
        slope = _mean_gradient(task, current_logs(), next(batches))
        u.grad = torch.from_numpy(slope[:-1] * speeds)
        if learns_factor:
            factor_log.grad = torch.tensor(slope[-1])

        # A penalty on divisors that are far from those of the formula. backward() adds its gradient
        # to that of the loss.
        if settings.regularise:
            change_of_logs = u * torch.from_numpy(speeds)
            penalty = settings.regularise * change_of_logs.square().mean()
            penalty.backward()
        optimizer.step()
        rates.step()

        # A step reads only some windows. Now and then the frequencies that are reached are
        # compared on all windows with the best ones so far, which takes longer.
        is_last_step = step == settings.steps
        if step % STEPS_BETWEEN_CHECKS == 0 or is_last_step:
            *divisors, factor = np.exp(current_logs()).tolist()
            candidate = start.factors(divisors, factor, RESULT_NAME)
            task.offer(candidate)
        should_end = task.end_step()
        if should_end:
            break
    return task.best


def _speeds(start: Start) -> np.ndarray:
    """Return the speed s = min(1, 1 / n) of each pair, which turns n times in the trained context.

    With the context T in tokens and the unscaled frequency theta, n = T theta / (2 pi).
    """
    radians_in_context = start.base * start.spec.original_context
    speeds: np.ndarray = np.minimum(1.0, 2 * math.pi / radians_in_context)
    return speeds


def _mean_gradient(task: Task, logs: Sequence[float], indices: Sequence[int]) -> np.ndarray:
    """Return the mean of the gradients on some windows, float64 [as many numbers as `logs`].

    Args:
        task: The search.
        logs: The logarithms of the divisors, then that of the attention factor.
        indices: The indices of the windows.
    """
    gradients = []
    for index in indices:
        window = task.scorer.windows[index]
        gradients.append(gradient(task, logs, window).numbers)
    mean: np.ndarray = np.mean(gradients, axis=0)
    return mean


def _batches(count: int, seed: int) -> Iterator[list[int]]:
    """Yield batches of indices below `count`; each index comes once before one comes again."""
    draw = np.random.default_rng(seed)
    order = list[int]()
    while True:
        while len(order) < WINDOWS_PER_STEP:
            order += draw.permutation(count).tolist()
        yield order[:WINDOWS_PER_STEP]
        order = order[WINDOWS_PER_STEP:]


def gradient(task: Task, logs: Sequence[float], window: TextWindow) -> PassLine:
    """Return the gradient of the loss of a window, from the journal or newly computed.

    Args:
        task: The search.
        logs: The logarithms of the divisors of the frequencies, and last the logarithm of the
            attention factor.
        window: The part of a text whose loss is differentiated.

    Returns:
        A line of the journal. Its `numbers` are the gradient, one for each number of `logs`.
    """
    # the key of the line: everything that the gradient depends on
    scorer = task.scorer
    key_parts = (
        "gradient",
        task.first_formula.schedule.digest,  # the frequencies that are divided
        np.array(logs).tobytes().hex(),
        repr(scorer.weights),  # of the losses inside the trained context and on hidden numbers
        window.digest,
    )
    return scorer.passes.read_or_run(key_parts, lambda: slopes(task, logs, window))


def slopes(task: Task, logs: Sequence[float], window: TextWindow) -> list[float]:
    """Return the gradient of the loss of a window with respect to `logs`, in nats per token.

    The result has as many numbers as `logs`. With -0.2 for a pair, a divisor larger by 1 percent
    changes the loss by about -0.002.

    Args:
        task: The search.
        logs: The logarithm of the divisor of each pair that rotates, then that of the attention
            factor.
        window: The window.

    Raises:
        RopeconvError: The gradient is not finite.
    """
    import torch

    from ropeconv.engines.transformers.differentiable import differentiable

    unscaled_model = task.start
    unscaled_inv_freq = torch.from_numpy(unscaled_model.base)  # of the pairs that rotate
    all_pairs = unscaled_model.spec.rotary_dim // 2
    runner = task.scorer.runner
    variables = torch.tensor(logs, dtype=torch.float64, requires_grad=True)

    # the model begins with the frequencies of a formula, and `engine.use` replaces them
    schedule = task.first_formula.schedule
    with differentiable(runner.loaded.model, schedule, runner.inspection.spec) as engine:
        divisor_logs = variables[:-1]
        factor_log = variables[-1]
        inv_freq = unscaled_inv_freq / divisor_logs.exp()
        # the last pairs of some models do not rotate, and keep frequency 0
        not_rotating = all_pairs - len(inv_freq)
        padded = torch.nn.functional.pad(inv_freq, (0, not_rotating))
        engine.use(padded, factor_log.exp())
        loss(engine, task.scorer, window).backward()

    if variables.grad is None or not torch.isfinite(variables.grad).all():
        raise RopeconvError(
            "the frequencies of this model have no finite gradient, so it cannot be tuned"
        )
    slope: list[float] = variables.grad.tolist()
    return slope


def loss(engine: Differentiable, scorer: Scorer, window: TextWindow) -> Tensor:
    """Return the loss of a window with a gradient, in nats per token, a scalar.

    The loss is a weighted sum of three means: of the tokens beyond the trained context (weight 1),
    of the tokens inside it, and of the digits of a number that is hidden in the text (needle).

    Args:
        engine: The model, whose frequencies have a gradient.
        scorer: Has the weights of the sum.
        window: A part of a text, and a sequence with a hidden number if that has a weight.
    """
    weights = scorer.weights
    text = window.text
    needle = window.needle
    # the losses of the targets inside the trained context come first
    token_losses = engine.losses(text.ids.tolist(), text.targets.tolist())
    inside_losses = token_losses[: window.inside_count]
    beyond_losses = token_losses[window.inside_count :]

    total = beyond_losses.mean()
    if weights.inside and window.inside_count:
        total = total + weights.inside * inside_losses.mean()
    if weights.needle and needle is not None:
        digit_losses = engine.losses(needle.ids.tolist(), needle.targets.tolist())
        total = total + weights.needle * digit_losses.mean()
    return total
