"""One sentence where a schedule does not keep near tokens preferred as far as it claims."""

from __future__ import annotations

from ..forms import DynamicNtk, Plain
from ..schedule import Schedule
from ..spec import RopeSpec
from .answer import smallest_base
from .reach import first_violation

REFERENCE = "Men et al. 2024, https://arxiv.org/abs/2405.14591"


def shortfall(schedule: Schedule, spec: RopeSpec) -> str:
    """What is wrong with the schedule by the bound, and empty where nothing is.

    A theta under the smallest base for the context is called that; any other schedule is judged by its first violation.
    """
    if isinstance(schedule.form, DynamicNtk):
        return ""
    first = first_violation(schedule.inv_freq, spec.unrotated, schedule.context)
    if first is None:
        return ""
    fact = f"sum cos(m theta_i) is negative from distance {first:,} on and off"
    least = smallest_base(schedule.context, spec.rotary_dim, spec.head_dim)
    if isinstance(schedule.form, Plain) and least is not None and schedule.form.theta < least:
        what = (
            f"theta {schedule.form.theta:.12g} is under {least:,.0f}, the least for {schedule.context:,} tokens: {fact}"
        )
    else:
        what = f"the effective length is {first - 1:,} of {schedule.context:,} tokens: {fact}"
    return f"{what}; perplexity can be low there and retrieval lost ({REFERENCE})"
