"""The warning about a schedule whose effective length is below its context."""

from __future__ import annotations

from ..forms import DynamicNtk, Plain
from ..schedule import Schedule
from ..spec import RopeSpec
from .answer import smallest_base
from .reach import FARTHEST, first_violation

REFERENCE = "Men et al. 2024, https://arxiv.org/abs/2405.14591"


def effective_length(schedule: Schedule, spec: RopeSpec) -> int | None:
    """L_theta of a schedule in tokens, where it is below its context; None where B(m) >= 0 in the whole context."""
    first = first_violation(schedule.inv_freq, spec.unrotated, min(schedule.context, FARTHEST))
    return None if first is None else first - 1


def shortfall(schedule: Schedule, spec: RopeSpec) -> str:
    """A sentence about a schedule whose effective length is below its context; empty where it is not.

    For a plain base it names the smallest base for the context, where the tables have it; else the effective length.
    Men et al. 2024, https://arxiv.org/abs/2405.14591.
    """
    if isinstance(schedule.form, DynamicNtk):
        return ""
    context, form = schedule.context, schedule.form
    reached = effective_length(schedule, spec)
    if reached is None:
        return ""
    least = smallest_base(context, spec.rotary_dim, spec.head_dim)
    if isinstance(form, Plain) and least is not None and form.theta < least:
        what = f"theta {form.theta:.12g} is under {least:,.0f}, the smallest for {context:,} tokens"
    else:
        what = f"the effective length is {reached:,}, below the context of {context:,}"
    fact = f"sum cos(m theta_i) is negative at distance {reached + 1:,} and at some larger ones"
    return f"{what}: {fact}; perplexity can be low there and retrieval lost ({REFERENCE})"
