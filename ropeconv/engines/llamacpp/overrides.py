"""A schedule as key overrides, with which llama.cpp loads a file of another schedule.

They follow from the schedule alone and not from an encoding, so that the reference shares no code with the output.
"""

from __future__ import annotations

import math

from ...rope.forms import Interpolated, Plain, Yarn
from ...rope.schedule import Schedule
from ...runtimes.llamacpp import find_arch
from .messages import Override


def overrides(schedule: Schedule, arch: str) -> dict[str, Override] | None:
    """The key overrides with which llama.cpp computes a schedule; None where keys cannot express it.

    arch: the GGUF architecture, with which the keys begin.
    """
    form, attention_factor = schedule.form, schedule.attention_factor
    theta_key = find_arch(arch, assumed=True).theta_key
    if not isinstance(form, (Plain, Interpolated, Yarn)):
        return None
    found: dict[str, Override] = {theta_key: ("float", form.theta), "context_length": ("int", schedule.context)}
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
