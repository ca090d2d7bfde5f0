"""The effective length of a schedule within the context that its layers see, compared with that of its source."""

from __future__ import annotations

from ..schedule import Schedule
from ..spec import RopeSpec
from .reach import FARTHEST, first_violation

MOST_COSINES = 1 << 28
"""Distances times pairs that are looked at for a warning, some seconds: 4M tokens for heads of 128 dimensions. A config
may declare any context, and `ropeconv bound` looks further."""

REFERENCE = "Men et al. 2024, https://arxiv.org/abs/2405.14591"


def effective_length(schedule: Schedule, spec: RopeSpec) -> int | None:
    """L_theta of a schedule in tokens, where it is below what the layers see; None where B(m) >= 0 in all of that.

    schedule: whose frequencies and context count. spec: the model, whose windows limit the distances.
    """
    return _below(schedule, spec, spec.visible(schedule.context))


def source_reach(schedule: Schedule, source: RopeSpec) -> int | None:
    """The effective length of a source in tokens, looked for as far as the layers see in the output and in the source.

    schedule: of the output. source: the model as it is. None where B(m) >= 0 in all of that.
    """
    return _below(source.current(), source, source.visible(max(schedule.context, source.context)))


def is_worse(reached: int | None, before: int | None, covered: int) -> bool:
    """Whether an effective length is worse than its source's: shorter, or the same where the context has outgrown it.

    reached: of the output. before: as `source_reach` gives it. covered: tokens that the source declares.
    """
    return reached is not None and (before is None or before > reached or (before == reached and before >= covered))


def worse_than_source(schedule: Schedule, source: RopeSpec) -> str:
    """A sentence about a schedule whose effective length is worse than its source's; empty where it is not.

    source: the model as it is. Men et al. 2024, https://arxiv.org/abs/2405.14591.
    """
    reached, before = effective_length(schedule, source), source_reach(schedule, source)
    if reached is None or not is_worse(reached, before, source.visible(source.context)):
        return ""
    whose = f"is {before:,}" if before is not None else f"covers {source.visible(schedule.context):,} tokens"
    if reached == before:
        whose = f"is the same, for {source.context:,} tokens"
    return (
        f"the effective length is {reached:,} of {schedule.context:,} tokens; the source's {whose}: beyond it "
        f"sum cos(m theta_i) is negative at some distances, and retrieval can be lost ({REFERENCE})"
    )


def _below(schedule: Schedule, spec: RopeSpec, length: int) -> int | None:
    searched = min(length, FARTHEST, MOST_COSINES // len(schedule.inv_freq))
    first = first_violation(schedule.inv_freq, spec.unrotated, searched)
    return None if first is None else first - 1
