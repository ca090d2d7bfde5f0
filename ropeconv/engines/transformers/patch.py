"""Makes a loaded stock model compute a schedule, through its modules and not through its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import BadSource
from ...rope.forms import Vector
from ...rope.log_n import LogN, Staircase
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec

ROUNDED_BY = 1.37  # any number that is no power of two


def patched_at(schedule: Schedule, last: int) -> Schedule:
    """The schedule in force for a sequence that ends at position `last`: LongRoPE has two."""
    if schedule.short_inv_freq is not None and last < schedule.original_context:
        return replace(schedule, inv_freq=schedule.short_inv_freq)
    return schedule


def patch(model: Any, schedule: Schedule, before: RopeSpec) -> None:
    """Overwrites frequencies, amplitude and softmax scale of the layers that the schedule is for.

    `rope_type` becomes "default", since the dynamic types write their own frequencies back at every forward.
    before: the source's own RopeSpec. Raises BadSource when the model has no module of the known shape.
    """
    done = 0
    for name, module in model.named_modules():
        if "RotaryEmbedding" not in type(module).__name__ or "vision" in name or "visual" in name:
            continue
        if name.endswith("_local") or "sliding_attention" in name:
            continue
        prefix = "full_attention_" if hasattr(module, "full_attention_inv_freq") else ""
        if not hasattr(module, f"{prefix}inv_freq"):
            continue
        _overwrite(module, prefix, schedule.inv_freq, schedule.attention_factor)
        done += 1
    if not done:
        raise BadSource(f"{type(model).__name__} has no rotary module that can be overwritten; validate another way")
    if before.mla:
        _rescale(model, schedule.softmax_scale)


def nudged(schedule: Schedule, seed: int = 0) -> Schedule:
    """The schedule with every frequency moved up or down by the two steps of float32 that a right one may be off."""
    signs = np.random.default_rng(seed).choice([-2, 2], len(schedule.inv_freq))
    moved = schedule.inv_freq.astype(np.float32).view(np.int32) + signs.astype(np.int32)
    return replace(schedule, inv_freq=moved.view(np.float32).astype(np.float64))


def round_weights(model: Any, stored: Mapping[str, str]) -> None:
    """Rounds weights once, as a factor on them does: times a number and back, and between in the narrower type of
    those that they are stored in and computed in.

    stored: the former per weight, as safetensors names it.
    """
    import torch

    types = {"BF16": torch.bfloat16, "F16": torch.float16}
    for name, weight in model.named_parameters():
        if name in stored:
            rounded = (weight.data.float() * ROUNDED_BY).to(types.get(stored[name], weight.dtype)).float() / ROUNDED_BY
            weight.data = rounded.to(weight.dtype)


def scale_queries(model: Any, scale: LogN | Staircase, queries: str) -> Callable[[], None]:
    """Multiplies the queries of every layer by a function of their position, at the output of the module `queries`.

    A scale of a whole query commutes with its rotation, so it may come before. The positions are those that the rotary
    module is given. Returns what undoes it. Raises BadSource when the model has no such modules.
    """
    import torch

    positions: list[Any] = []

    def remember(module: Any, args: Any, given: dict[str, Any]) -> None:
        positions[:] = [given["position_ids"] if "position_ids" in given else args[1]]

    def multiply(module: Any, args: Any, output: Any) -> Any:
        ids = positions[0]
        factor = torch.from_numpy(scale.scale(ids.cpu().numpy()).astype(np.float32)).to(output.device)
        return (output * factor.reshape(*factor.shape, *[1] * (output.dim() - 2))).to(output.dtype)

    found = [module for name, module in model.named_modules() if queries and name.endswith(queries)]
    rotary = [module for module in model.modules() if "RotaryEmbedding" in type(module).__name__]
    if not found or not rotary:
        raise BadSource(f"{type(model).__name__} makes its queries in no module of their own; validate another way")
    hooks = [rotary[0].register_forward_pre_hook(remember, with_kwargs=True)]
    hooks += [module.register_forward_hook(multiply) for module in found]

    def undo() -> None:
        for hook in hooks:
            hook.remove()

    return undo


def _overwrite(module: Any, prefix: str, inv_freq: Vector, attention_factor: float) -> None:
    import torch

    old = getattr(module, f"{prefix}inv_freq")
    new = torch.from_numpy(inv_freq.astype(np.float32)).to(old.device)
    setattr(module, f"{prefix}inv_freq", new)
    if hasattr(module, f"{prefix}original_inv_freq"):
        setattr(module, f"{prefix}original_inv_freq", new.clone())
    setattr(module, f"{prefix}attention_scaling", attention_factor)
    if isinstance(module.rope_type, dict):
        module.rope_type = {**module.rope_type, "full_attention": "default"}
    else:
        module.rope_type = "default"


def _rescale(model: Any, softmax_scale: float) -> None:
    for module in model.modules():
        if hasattr(module, "scaling") and hasattr(module, "qk_head_dim"):
            module.scaling = module.qk_head_dim**-0.5 * softmax_scale
