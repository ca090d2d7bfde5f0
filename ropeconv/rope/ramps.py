"""RampApproximation: a YaRN ramp that a runtime computes in place of the model's own ramp.

gpt-oss has a ramp with ends that are not rounded, and Kimi K2 one with other betas. llama.cpp
always rounds the ends, and for most architectures its betas are 32 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .forms import Yarn
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
        return _round_ends(schedule, form, self.beta_fast, self.beta_slow)

    @property
    def distance(self) -> str:
        """How far the frequencies and angles are off, in words.

        Such as "9 of 64 pairs rotate at another speed (pair 30 is 12% slower), and angles are up to
        4.2 rotations off at 131,072 tokens".
        """
        # the pair that is furthest off: "3.0 times slower", or "20% slower" for small changes
        worst_pair = self.pair
        ratio = self.ratio  # its frequency over the right one
        times = max(ratio, 1 / ratio)
        how_much = f"{abs(ratio - 1):.0%}" if times < 2 else f"{times:.1f} times"
        speed = "slower" if ratio < 1 else "faster"

        wrong_pairs = self.pairs
        all_pairs = self.of
        rotate = "pair rotates" if wrong_pairs == 1 else "pairs rotate"
        rotations_off = self.turns  # at the end of the context
        return (
            f"{wrong_pairs} of {all_pairs} {rotate} at another speed (pair {worst_pair} is"
            f" {how_much} {speed}), and angles are up to {rotations_off:,.1f} rotations off at"
            f" {self.context:,} tokens"
        )


def _round_ends(schedule: Schedule, form: Yarn, beta_fast: float, beta_slow: float) -> Schedule:
    """The schedule with other betas, and with the ends of the ramp rounded to whole pairs."""
    rotary_dim = 2 * len(schedule.inv_freq)
    rounded = replace(form, beta_fast=beta_fast, beta_slow=beta_slow, truncate=True)
    computed = rounded.order_ends(rotary_dim)
    return replace(schedule, form=computed, inv_freq=computed.inv_freq(rotary_dim))


def approximate_ramp(
    schedule: Schedule, beta_fast: float, beta_slow: float
) -> RampApproximation | None:
    """Return the YaRN ramp that a runtime computes for a schedule, and how far off it is.

    YaRN's ramp goes from the pairs whose frequency is unchanged to those whose frequency is divided
    by the factor. The runtime rounds its ends to whole pairs and may have betas of its own.

    Args:
        schedule: The schedule whose ramp is replaced.
        beta_fast: Rotations within the trained context at the fast end of the runtime's ramp.
        beta_slow: Rotations within the trained context at its slow end.

    Returns:
        The ramp; None where the schedule is not YaRN, or where the frequencies are the same.
    """
    form = schedule.simplify_crossed().form
    has_two_lists = schedule.short_inv_freq is not None
    if not isinstance(form, Yarn) or has_two_lists:
        return None
    has_same_ends = form.beta_fast == beta_fast and form.beta_slow == beta_slow
    if has_same_ends and form.truncate:
        return None

    # a pair twice as fast and one half as fast are equally far off, so logarithms are compared;
    # pairs that stand still do so in both ramps
    wanted = schedule.inv_freq
    computed = _round_ends(schedule, form, beta_fast, beta_slow).inv_freq
    ratio = np.divide(computed, wanted, out=np.ones(len(wanted)), where=wanted > 0)
    distance = np.abs(np.log(ratio))
    differing = int(np.sum(distance > SAME))
    if differing == 0:
        return None

    # the angle of a pair is position times frequency: off most at the end of the context
    worst = int(np.argmax(distance))
    largest_difference = float(np.max(np.abs(computed - wanted)))
    rotations_off = largest_difference * schedule.context / (2 * np.pi)
    return RampApproximation(
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        ratio=float(ratio[worst]),
        pair=worst,
        pairs=differing,
        of=len(wanted),
        turns=rotations_off,
        context=schedule.context,
        inv_freq=tuple(float(frequency) for frequency in computed),
    )
