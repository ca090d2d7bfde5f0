"""Mistakes that no schedule expresses, as changes of a patched model of transformers.

Each function returns a Change, which is applied on top of the patch of a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from ropeconv.models.family import WeightNames
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import Layout

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel


class CannotChange(RopeconvError):
    """A mistake that a model cannot make."""


Change = Callable[[ExitStack, "PreTrainedModel"], None]
"""Changes a model until the stack is closed."""


def exchange_pairs(weights: WeightNames, layout: Layout, head_dim: int, rotary_dim: int) -> Change:
    """Return a function that makes a model of transformers rotate the pairs of the other layout.

    A runtime with the wrong layout rotates (2i, 2i + 1) in place of (i, i + r/2), or the reverse.
    Here the dimensions of queries and keys are exchanged before the right rotation, which gives
    the same scores: a score is a sum over pairs, in any order.

    Args:
        weights: The names of the projections of the family.
        layout: The right layout.
        head_dim: Width of a head.
        rotary_dim: How many of its dimensions rotate.
    """
    # The new order of the dimensions of a head. In some families only the first rotary_dim of them
    # rotate, in others only the last. The dimensions that do not rotate are not exchanged.
    rotating = _order_of_other_layout(layout, rotary_dim)
    not_rotating = head_dim - rotary_dim
    if weights.rows == "last":
        order = [*range(not_rotating), *(not_rotating + index for index in rotating)]
    else:
        order = [*rotating, *range(rotary_dim, head_dim)]

    def exchange(module: Module, inputs: object, output: Tensor) -> Tensor:
        """Return queries or keys with exchanged dimensions, as a hook of their module."""
        # a projection gives [..., heads * head_dim], and a norm of each head [..., head_dim]
        heads = output.unflatten(-1, (-1, head_dim))
        exchanged = heads[..., order].flatten(-2)
        return exchanged.view(output.shape)

    def change(stack: ExitStack, model: PreTrainedModel) -> None:
        for module in _before_rotation(model, weights):
            hook = module.register_forward_hook(exchange)
            stack.callback(hook.remove)

    return change


def _order_of_other_layout(layout: Layout, rotary_dim: int) -> list[int]:
    """Return the order of dimensions with which a model rotates the pairs of the other layout.

    For 6 dimensions: 0, 2, 4, 1, 3, 5 where the right layout is "half", and else 0, 3, 1, 4, 2, 5.
    """
    if layout == "half":
        # the wrong pairs are neighbours: place i gets the first of (2i, 2i + 1), and place i + r/2
        # the second
        pairs = np.arange(rotary_dim).reshape(-1, 2)
        return [int(index) for index in pairs.T.reshape(-1)]
    # the wrong pairs are (i, i + r/2): they are put side by side
    halves = np.arange(rotary_dim).reshape(2, -1)
    return [int(index) for index in halves.T.reshape(-1)]


def _before_rotation(model: PreTrainedModel, weights: WeightNames) -> list[Module]:
    """Return the last modules before the rotation: those of queries and of keys in every layer.

    Raises:
        CannotChange: The model has none.
    """
    # The norms of queries and keys come between projection and rotation, in most families that
    # have them. A model may be built without them, and then its projections are the last.
    names_to_try = [(weights.q, weights.k)]
    if "after" not in weights.norm:
        names_to_try.insert(0, (weights.q_norm, weights.k_norm))
    for names in names_to_try:
        endings = tuple(f".{name}" for name in names if name)
        if not endings:
            continue
        found = [module for name, module in model.named_modules() if name.endswith(endings)]
        if found:
            return found
    raise CannotChange(f"{type(model).__name__} has no modules of queries and keys")


def exchange_latent_pairs(stack: ExitStack, model: PreTrainedModel) -> None:
    """Let a model with multi-head latent attention rotate the pairs of the other layout; a Change.

    Its classes read the layout from their config (`rope_interleave`, modeling_deepseek_v3.py).

    Raises:
        CannotChange: The class has one layout in its code.
    """
    # modules may share a config, which must be switched once
    configs: list[PretrainedConfig] = []
    for module in model.modules():
        config = getattr(module, "config", None)
        has_switch = isinstance(getattr(config, "rope_interleave", None), bool)
        is_new = all(config is not other for other in configs)
        if has_switch and is_new:
            configs.append(config)
    if not configs:
        raise CannotChange(f"{type(model).__name__} has one layout in its code")
    for config in configs:
        stack.callback(setattr, config, "rope_interleave", config.rope_interleave)
        config.rope_interleave = not config.rope_interleave


def rotate_whole_heads(head_dim: int) -> Change:
    """Return a function that makes a model of transformers rotate all dimensions of a head.

    It is for a model in which only a part of them rotates. Most classes rotate as many as cos and
    sin have, which are set elsewhere. Some have the number as an attribute (`rotary_ndims` in
    modeling_phi.py and modeling_stablelm.py), which the function changes.

    Args:
        head_dim: The width of a head.
    """

    def change(stack: ExitStack, model: PreTrainedModel) -> None:
        for module in model.modules():
            old = getattr(module, "rotary_ndims", None)
            if isinstance(old, int):
                stack.callback(setattr, module, "rotary_ndims", old)
                module.rotary_ndims = head_dim

    return change


def scale_local_layers(schedule: Schedule) -> Change:
    """Return a function that makes a known mistake in a model: it scales the local layers too.

    Local layers have a sliding window and frequencies of their own, which stay unscaled (Gemma 3).
    The changed model computes the same as a runtime that scales all layers.

    Args:
        schedule: The scaled frequencies and the attention factor of the layers with full attention.
    """
    import torch

    inv_freq = torch.from_numpy(schedule.inv_freq.astype(np.float32))

    def change(stack: ExitStack, model: PreTrainedModel) -> None:
        """Change the model; the end of `stack` sets the old values again."""
        # `prefix` is the begin of the names of a module's attributes, such as "sliding_attention_"
        for module, prefix in _local_modules(model):
            # transformers sets inv_freq to original_inv_freq after a long input, if there is one
            for name in (f"{prefix}inv_freq", f"{prefix}original_inv_freq"):
                if hasattr(module, name):
                    old_inv_freq = getattr(module, name)
                    stack.callback(setattr, module, name, old_inv_freq)
                    setattr(module, name, inv_freq.to(old_inv_freq.device))
            name = f"{prefix}attention_scaling"
            old_scaling = getattr(module, name)
            stack.callback(setattr, module, name, old_scaling)
            setattr(module, name, schedule.attention_factor)

    return change


def _local_modules(model: PreTrainedModel) -> Iterator[tuple[Module, str]]:
    """Yield rotary modules of layers with a sliding window, with the prefix of their buffers."""
    for name, module in model.named_modules():
        if "RotaryEmbedding" not in type(module).__name__:
            continue
        if name.endswith("_local"):
            yield module, ""
            continue
        for buffer, _ in module.named_buffers(recurse=False):
            if buffer.endswith("inv_freq") and "sliding" in buffer and "original" not in buffer:
                yield module, buffer.removesuffix("inv_freq")
