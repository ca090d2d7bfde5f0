"""Scorer: what schedules lose on windows of text, each read once; and races between two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..engines import Engine
from ..errors import NotFinite
from ..evaluate.result import decided
from ..rope.schedule import Schedule
from .passes import Passes
from .windows import Window

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

FEWEST = 4
"""Windows before a race may end."""


@dataclass(frozen=True)
class Price:
    """What a loss is made of: `beyond + inside * inside_loss + needle * needle_loss`, in nats per token.

    inside: weight of the loss inside the trained context. needle: weight of the loss of hidden numbers.
    """

    inside: float = 0.3
    needle: float = 0.0


@dataclass(frozen=True, eq=False)
class Losses:
    """What a schedule loses on one window, in nats.

    tokens: of each target of the text, float64. beyond: index of the first one beyond the trained context. needle: the
    mean over the digits of the hidden number; 0 without one.
    """

    tokens: NDArray[np.float64]
    beyond: int
    needle: float = 0.0

    @property
    def inside_loss(self) -> float:
        """The mean loss inside the trained context, in nats per token."""
        return float(self.tokens[: self.beyond].mean()) if self.beyond else 0.0

    @property
    def beyond_loss(self) -> float:
        """The mean loss beyond the trained context, in nats per token."""
        return float(self.tokens[self.beyond :].mean())

    def value(self, price: Price) -> float:
        """The loss that is searched for the least of. price: of its parts."""
        return self.beyond_loss + price.inside * self.inside_loss + price.needle * self.needle


class Patching(Protocol):
    """A loaded model into which schedules are patched, as `evaluate.runners.patched.Patched` is one."""

    def patched(self, schedule: Schedule) -> AbstractContextManager[Engine]:
        """The engine that computes a schedule."""


@dataclass
class Scorer:
    """Reads windows with schedules, and remembers what it has read.

    runner: patches a schedule into the model. windows: at least one. price: of the parts of a loss. passes: of earlier
    runs. seen: what was read.
    """

    runner: Patching
    windows: Sequence[Window]
    price: Price
    passes: Passes = field(default_factory=Passes)
    seen: dict[tuple[str, int], Losses] = field(default_factory=dict)

    def losses(self, schedule: Schedule, count: int | None = None) -> list[Losses]:
        """What a schedule loses on the first `count` windows, by default on all of them."""
        numbers = range(len(self.windows) if count is None else min(count, len(self.windows)))
        missing = [number for number in numbers if (schedule.digest, number) not in self.seen]
        if missing:
            with self.runner.patched(schedule) as engine:
                for number in missing:
                    window = self.windows[number]
                    what = ("loss", schedule.digest, window.digest)
                    *tokens, needle = self.passes.numbers(what, partial(_read, engine, window))
                    self.seen[schedule.digest, number] = Losses(np.array(tokens), window.beyond, needle)
        return [self.seen[schedule.digest, number] for number in numbers]

    def values(self, schedule: Schedule, count: int | None = None) -> NDArray[np.float64]:
        """The losses that are searched for the least of, per window; infinite where the model gives no number.

        schedule: to read with. count: of windows, by default all.
        """
        return np.array([one.value(self.price) for one in self.losses(schedule, count)])

    def race(self, schedule: Schedule, best: Schedule) -> Difference:
        """How a schedule compares with the best one so far. It ends early where it is worse beyond its error."""
        for count in range(min(FEWEST, len(self.windows)), len(self.windows) + 1):
            found = Difference(self.values(schedule, count) - self.values(best, count))
            if found.mean > 0 and found.decided:
                break
        return found


def _read(engine: Engine, window: Window) -> list[float]:
    """The losses of the targets of a window, then that of its hidden number, 0 without one."""
    case, needle = window.text, 0.0
    tokens = engine.token_losses(case.ids.tolist(), case.targets.tolist()).loss
    if window.needle is not None:
        asked = window.needle
        needle = float(engine.token_losses(asked.ids.tolist(), asked.targets.tolist()).loss.mean())
    if not (np.isfinite(tokens).all() and math.isfinite(needle)):
        raise NotFinite("the model gives NaN or infinite logits; give --dtype float32 or bfloat16")
    return [*np.asarray(tokens, np.float64).tolist(), needle]


@dataclass(frozen=True, eq=False)
class Difference:
    """Paired differences of losses, one per window, in nats per token: below 0 is better. values: float64 [windows]."""

    values: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(self.values.mean())

    @cached_property
    def error(self) -> float:
        """The standard error of the mean; infinite for a single window."""
        count = len(self.values)
        return float(self.values.std(ddof=1) / math.sqrt(count)) if count > 1 else math.inf

    @property
    def decided(self) -> bool:
        """Whether the mean is beyond three standard errors."""
        return decided(self.mean, self.error)
