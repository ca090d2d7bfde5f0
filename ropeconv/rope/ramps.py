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
    """Return YaRN with a ramp whose ends are rounded to whole pairs, in place of a schedule's own.

    None where the schedule is not YaRN, or has exactly this ramp.

    Args:
        schedule: The schedule whose ramp is replaced.
        beta_fast: Rotations within the trained context at the fast end of the rounded ramp.
        beta_slow: Rotations within the trained context at its slow end.
    """
    form = schedule.form
    has_two_lists = schedule.short_inv_freq is not None
    if not isinstance(form, Yarn) or has_two_lists:
        return None
    has_same_ends = form.beta_fast == beta_fast and form.beta_slow == beta_slow
    if has_same_ends and form.truncate:
        return None

    # the ramp gives the frequencies, by which its distance from the schedule is measured
    unmeasured = RampApproximation(
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
    computed = unmeasured.apply_to(schedule).inv_freq
    return _measure(unmeasured, computed, schedule.inv_freq)


def _measure(
    unmeasured: RampApproximation, computed: Vector, right: Vector
) -> RampApproximation | None:
    """The approximation with its distance; None where both ramps give the same frequencies.

    Args:
        unmeasured: The approximation without its distance.
        computed: Its frequencies, radians per token, float64 [pairs].
        right: The frequencies of the schedule, float64 [pairs].
    """
    # a pair twice as fast and one half as fast are equally far off, so logarithms are compared;
    # pairs that stand still do so in both ramps
    ratio = np.divide(computed, right, out=np.ones(len(right)), where=right > 0)
    distance = np.abs(np.log(ratio))
    differing = int(np.sum(distance > SAME))
    if differing == 0:
        return None

    # the angle of a pair is position times frequency: off most at the end of the context
    worst = int(np.argmax(distance))
    largest_difference = float(np.max(np.abs(computed - right)))
    rotations_off = largest_difference * unmeasured.context / (2 * np.pi)
    return replace(
        unmeasured,
        ratio=float(ratio[worst]),
        pair=worst,
        pairs=differing,
        turns=rotations_off,
        inv_freq=tuple(float(frequency) for frequency in computed),
    )
