"""The effective length of a schedule within the context that its layers see, compared with that of its source."""

from __future__ import annotations

from ..schedule import Schedule
from ..spec import RopeSpec
from .reach import FARTHEST, first_violation

REFERENCE = "Men et al. 2024, https://arxiv.org/abs/2405.14591"


def effective_length(schedule: Schedule, spec: RopeSpec) -> int | None:
    """L_theta of a schedule in tokens, where it is below what the layers see; None where B(m) >= 0 in all of that.

    schedule: whose frequencies and context count. spec: the model, whose windows limit the distances.
    """
    return _below(schedule, spec, spec.visible(schedule.context))


def worse_than_source(schedule: Schedule, source: RopeSpec) -> str:
    """A sentence about a schedule whose effective length is worse than its source's; empty where it is not.

    Worse is a shorter one, or the same one where only the declared context has outgrown it. source: the model as it is.
    Men et al. 2024, https://arxiv.org/abs/2405.14591.
    """
    reached = effective_length(schedule, source)
    if reached is None:
        return ""
    now = source.current()
    before = _below(now, source, source.visible(max(schedule.context, source.context)))
    uncovered = before == reached and before >= source.visible(source.context)
    if before is not None and before <= reached and not uncovered:
        return ""
    whose = f"is {before:,}" if before is not None else f"covers {source.visible(schedule.context):,} tokens"
    return (
        f"the effective length is {reached:,} of {schedule.context:,} tokens; the source's {whose}: beyond it "
        f"sum cos(m theta_i) is negative at some distances, and retrieval can be lost ({REFERENCE})"
    )


def _below(schedule: Schedule, spec: RopeSpec, length: int) -> int | None:
    first = first_violation(schedule.inv_freq, spec.unrotated, min(length, FARTHEST))
    return None if first is None else first - 1
