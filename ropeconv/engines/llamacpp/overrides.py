"""A schedule as what can be told to llama.cpp at loading, beside a file that says otherwise.

Made from the schedule alone and not from an encoding, so that a reference shares no code with what it judges.
"""

from __future__ import annotations

import math

from ...rope.forms import Interpolated, Plain, Yarn
from ...rope.schedule import Schedule
from .client import Override


def overrides(schedule: Schedule, arch: str) -> dict[str, Override] | None:
    """Key overrides that make llama.cpp compute the schedule; None where keys cannot say it."""
    form, attention_factor = schedule.form, schedule.attention_factor
    if not isinstance(form, (Plain, Interpolated, Yarn)):
        return None
    found: dict[str, Override] = {"rope.freq_base": ("float", form.theta), "context_length": ("int", schedule.context)}
    if isinstance(form, Plain):
        found["rope.scaling.type"] = ("str", "none")
    else:
        found["rope.scaling.type"] = ("str", form.kind)
        found["rope.scaling.factor"] = ("float", form.factor)
    if isinstance(form, Yarn):
        if (form.beta_fast, form.beta_slow, form.truncate) != (32.0, 1.0, True):
            return None
        found["rope.scaling.original_context_length"] = ("int", form.original_context)
        attention_factor /= 1 + 0.1 * math.log(form.factor)
    found["rope.scaling.attn_factor"] = ("float", attention_factor)
    return {f"{arch}.{key}": value for key, value in found.items()}
