"""RampApproximation: a YaRN ramp that a runtime computes in place of the model's own ramp.

gpt-oss has a ramp with ends that are not rounded, and Kimi K2 one with other betas. llama.cpp
always rounds the ends, and for most architectures its betas are 32 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .forms import Vector, Yarn
from .schedule import Schedule

SAME = 1e-6


@dataclass(frozen=True)
class RampApproximation:
    """A ramp that is computed in place of the one of a schedule, and how far the two differ."""

    beta_fast: float
    """Rotations in the trained context above which a frequency is unchanged."""

    beta_slow: float
    """Rotations below which a frequency is divided by the factor."""

    ratio: float
    """The computed frequency over the right one, of the pair that is furthest off."""

    pair: int
    """The index of that pair."""

    pairs: int
    """How many pairs are off."""

    of: int
    """How many pairs there are."""

    turns: float
    """Largest difference of an angle at the end of the context, in whole rotations."""

    context: int
    """The declared context in tokens."""

    inv_freq: tuple[float, ...]
    """The frequencies that are computed, radians per token, one per pair."""

    def apply_to(self, schedule: Schedule) -> Schedule:
        """Return a schedule with this ramp, whose ends are rounded, in place of its own."""
        form = schedule.form
        assert isinstance(form, Yarn)
        rounded = replace(form, beta_fast=self.beta_fast, beta_slow=self.beta_slow, truncate=True)
        inv_freq = rounded.inv_freq(2 * len(schedule.inv_freq))
        return replace(schedule, form=rounded, inv_freq=inv_freq)

    @property
    def distance(self) -> str:
        """The distance in words."""
        times = max(self.ratio, 1 / self.ratio)
        how = f"{times:.1f} times"
        if times < 2:
            how = f"{abs(self.ratio - 1):.0%}"
        speed = "slower" if self.ratio < 1 else "faster"
        rotate = "pair rotates" if self.pairs == 1 else "pairs rotate"
        return (
            f"{self.pairs} of {self.of} {rotate} at another speed (pair {self.pair} is {how}"
            f" {speed}), and angles are up to {self.turns:,.1f} rotations off at {self.context:,}"
            " tokens"
        )


def approximate_ramp(
    schedule: Schedule, beta_fast: float, beta_slow: float
) -> RampApproximation | None:
    """Return the approximation of a schedule by a rounded ramp.

    None where the schedule has no ramp, or has exactly this one.

    Args:
        schedule: The schedule whose ramp is replaced.
        beta_fast: Rotations within the trained context at the fast end of the rounded ramp.
        beta_slow: Rotations within the trained context at its slow end.
    """
    form = schedule.form
    if not isinstance(form, Yarn) or schedule.short_inv_freq is not None:
        return None
    if (form.beta_fast, form.beta_slow, form.truncate) == (beta_fast, beta_slow, True):
        return None

    # the ramp first: it gives the frequencies, with which its distance is measured
    bare = RampApproximation(
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        ratio=1.0,
        pair=0,
        pairs=0,
        of=len(schedule.inv_freq),
        turns=0.0,
        context=schedule.context,
        inv_freq=(),
    )
    return _measure(bare, bare.apply_to(schedule).inv_freq, schedule.inv_freq)


def _measure(bare: RampApproximation, computed: Vector, right: Vector) -> RampApproximation | None:
    """The approximation with its distance; None where both ramps give the same frequencies."""
    # a pair twice as fast and one half as fast are equally far off, so logarithms are compared;
    # pairs that stand still do so in both ramps
    ratio = np.divide(computed, right, out=np.ones(len(right)), where=right > 0)
    off = np.abs(np.log(ratio))
    pairs = int(np.sum(off > SAME))
    if not pairs:
        return None

    # the angle of a pair is position times frequency: off most at the end of the context
    worst = int(np.argmax(off))
    largest_difference = float(np.max(np.abs(computed - right)))
    turns = largest_difference * bare.context / (2 * np.pi)
    frequencies = tuple(float(value) for value in computed)
    return replace(
        bare, ratio=float(ratio[worst]), pair=worst, pairs=pairs, turns=turns, inv_freq=frequencies
    )
