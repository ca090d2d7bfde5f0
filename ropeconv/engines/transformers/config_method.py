"""The source loaded with the method in its config, as a second reference: transformers computes it by its own formula.

It uses neither the code of an encoding nor that of the patched reference: the formula is the one in transformers'
modeling_rope_utils.py, and the config has the parameters of the method.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...families import by_model_type
from ...families.layers import settings_name
from ...rope.forms import Interpolated, Llama3, LongRope, Plain, Yarn
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from .device import DeviceSpec
from .load import load_stock, stock_config


def parameters(schedule: Schedule, spec: RopeSpec) -> dict[str, Any]:
    """The `rope_parameters` of a schedule. spec: the RoPE of the source. Raises UsageError where there are none."""
    form, why = schedule.form, ""
    found: dict[str, Any] = {}
    if isinstance(form, Plain):
        found = {"rope_type": "default"}
    elif isinstance(form, Interpolated):
        found = {"rope_type": "linear", "factor": form.factor}
    elif isinstance(form, Yarn):
        found = {
            "rope_type": "yarn", "factor": form.factor, "original_max_position_embeddings": form.original_context,
            "beta_fast": form.beta_fast, "beta_slow": form.beta_slow, "truncate": form.truncate,
            "attention_factor": schedule.attention_factor,
        }  # fmt: skip
    elif isinstance(form, Llama3):
        found = {
            "rope_type": "llama3", "factor": form.factor, "original_max_position_embeddings": form.original_context,
            "low_freq_factor": form.low_freq_factor, "high_freq_factor": form.high_freq_factor,
        }  # fmt: skip
    elif isinstance(form, LongRope):
        found = {
            "rope_type": "longrope", "factor": schedule.context / form.original_context,
            "short_factor": list(form.short_factor), "long_factor": list(form.long_factor),
            "original_max_position_embeddings": form.original_context, "attention_factor": schedule.attention_factor,
        }  # fmt: skip
    else:
        why = "these frequencies"
    if schedule.log_n is not None:
        why = "log-n"
    elif schedule.attention_factor != 1 and "attention_factor" not in found:
        why = why or f"an attention factor with {found['rope_type']}"
    elif spec.mla:
        why = "the softmax scale of MLA in a method's own numbers"
    if why:
        raise UsageError(f"transformers has no method of its own for {why}; leave --reference config out")
    return {**found, "rope_theta": schedule.form.theta if schedule.form else spec.rope_theta}


def load_with_method(folder: Path, at: DeviceSpec, schedule: Schedule, spec: RopeSpec) -> Any:
    """The source as transformers loads it with the method in its config.

    folder: of the source. at: device and precision. schedule: to compute. spec: the RoPE of the source. Raises
    UsageError where transformers has no such method.
    """
    said = parameters(schedule, spec)
    config = stock_config(folder, at.stands_for)
    part = config.get_text_config()
    part.max_position_embeddings = schedule.context
    if hasattr(part, "rope_parameters"):
        known = part.rope_parameters or {}
        family = by_model_type().get(part.model_type)
        name = settings_name(part.to_dict(), family, "global") if family is not None else ""
        if isinstance(known.get(name), dict):
            part.rope_parameters = {**known, name: {**known[name], **said}}
        else:
            part.rope_parameters = {k: v for k, v in known.items() if k == "partial_rotary_factor"} | said
    else:
        part.rope_theta = said["rope_theta"]
        part.rope_scaling = None if said["rope_type"] == "default" else said
    return load_stock(folder, at, config=config)
