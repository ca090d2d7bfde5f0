"""One sentence where a schedule does not keep near tokens preferred as far as it claims."""

from __future__ import annotations

from ..forms import DynamicNtk, Plain
from ..schedule import Schedule
from ..spec import RopeSpec
from .answer import smallest_base
from .reach import FARTHEST, first_violation

REFERENCE = "Men et al. 2024, https://arxiv.org/abs/2405.14591"


def effective_length(schedule: Schedule, spec: RopeSpec) -> int | None:
    """L_theta of a schedule, where it is below its context; None where the whole context keeps the bound."""
    first = first_violation(schedule.inv_freq, spec.unrotated, min(schedule.context, FARTHEST))
    return None if first is None else first - 1


def shortfall(schedule: Schedule, spec: RopeSpec) -> str:
    """What is wrong with the schedule by the bound, and empty where nothing is.

    A theta under the smallest base for the context is called that; of any other schedule the first violation is named.
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
    fact = f"sum cos(m theta_i) is negative at distance {reached + 1:,} and at larger ones"
    return f"{what}: {fact}; perplexity can be low there and retrieval lost ({REFERENCE})"
