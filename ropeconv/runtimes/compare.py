"""Compares what a runtime reads from a config with a schedule, and describes forms for people."""

from __future__ import annotations

import numpy as np

from ..rope.forms import Form, LongRope, Vector, Yarn
from ..rope.log_n import QueryScaling
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec

TOLERANCE = 1e-6


def difference(schedule: Schedule, before: RopeSpec, seen: RopeSpec) -> str:
    """A sentence on the first difference between what a runtime computes and a schedule; empty where there is none.

    before: the RoPE of the source, for window layers. seen: what the runtime reads.
    """
    if not _close(seen.form.inv_freq(seen.rotary_dim), schedule.inv_freq):
        return f"it computes other frequencies ({describe(seen.form)})"
    short = seen.form.short_inv_freq(seen.rotary_dim) if isinstance(seen.form, LongRope) else schedule.inv_freq
    wanted = schedule.short_inv_freq if schedule.short_inv_freq is not None else schedule.inv_freq
    if not _close(short, wanted):
        return "it computes other frequencies inside the trained context"
    if not _same(seen.attention_factor, schedule.attention_factor):
        return f"it uses the attention factor {seen.attention_factor:.4f}, not {schedule.attention_factor:.4f}"
    if not _same(seen.softmax_scale, schedule.softmax_scale):
        return f"it scales logits by {seen.softmax_scale:.4f}, not {schedule.softmax_scale:.4f}"
    if not _same_query_scaling(seen.query_scaling, schedule.query_scaling, schedule.context):
        return "it does not scale queries by position" if seen.query_scaling is None else "it scales queries otherwise"
    if (
        "local" in before.layers
        and before.local_form
        and not _same_form(seen.local_form, before.local_form, before.rotary_dim)
    ):
        return f"it changes the window layers as well ({describe(seen.local_form)})"
    return ""


def unscaled(seen: RopeSpec, before: RopeSpec, schedule: Schedule) -> bool:
    """Whether a runtime computes the RoPE of the unscaled model where a schedule has another one."""
    plain = before.unscaled().form.inv_freq(before.rotary_dim)
    changes = schedule.attention_factor != 1 or not _close(schedule.inv_freq, plain)
    return changes and seen.attention_factor == 1 and _close(seen.form.inv_freq(seen.rotary_dim), plain)


def _same_query_scaling(left: QueryScaling | None, right: QueryScaling | None, context: int) -> bool:
    """Whether two query scalings are the same up to a context, in tokens; within its length one has no effect."""
    if all(scaling is None or context <= scaling.length for scaling in (left, right)):
        return True
    if left is None or right is None:
        return left is right
    return left.length == right.length and _same(left.beta, right.beta)


def _same_form(left: Form | None, right: Form, rotary_dim: int) -> bool:
    return left == right or (left is not None and _close(left.inv_freq(rotary_dim), right.inv_freq(rotary_dim)))


def _same(left: float, right: float) -> bool:
    return abs(left - right) <= TOLERANCE * right


def _close(left: Vector, right: Vector) -> bool:
    return left.shape == right.shape and bool(np.all(np.abs(left - right) <= TOLERANCE * right))


def frequencies(schedule: Schedule) -> str:
    """The frequencies of a schedule for display: its form as `describe` has it, or "custom inv_freq"."""
    return describe(schedule.form) if schedule.form else "custom inv_freq"


def describe(form: Form | None) -> str:
    """A form for display: `yarn, theta 10000, factor 4, original_context 4096`."""
    if form is None:
        return "none"
    numbers = [
        f"{name} {value:.12g}"
        for name, value in vars(form).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    flags = ["truncate false"] if isinstance(form, Yarn) and not form.truncate else []
    return ", ".join([form.kind, *numbers, *flags])
