"""A loaded model whose losses can be differentiated with respect to its frequencies and its attention factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...errors import BadSource, RopeconvError
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from .backbone import backbone_of, differentiable_logits, has_decoder
from .patch import patch, rotary_modules

CHECKPOINTED = 2048
"""Tokens from which on the activations of a layer are computed again in the backward pass, and not kept."""
ROWS = 1 << 24
"""Numbers of logits that exist at a time."""


class Differentiable:
    """A model with frozen weights, whose frequencies and attention factor are tensors with a gradient.

    model: of transformers, in which `differentiable` has replaced the rotary modules. parts: those modules, and the
    prefix of the names of their frequencies.
    """

    def __init__(self, model: Any, parts: Sequence[tuple[Any, str]]) -> None:
        self.model, self._parts = model, parts

    def use(self, inv_freq: Any, attention_factor: Any) -> None:
        """Takes tensors into the next pass.

        inv_freq: [rotary_dim / 2], radians per token. attention_factor: scalar, multiplies cos and sin.
        """
        import torch

        for module, prefix in self._parts:
            device = module._buffers[f"{prefix}inv_freq"].device
            module._buffers[f"{prefix}inv_freq"] = inv_freq.to(device, torch.float32)
            setattr(module, f"{prefix}attention_scaling", attention_factor.to(device, torch.float32))

    def losses(self, ids: Sequence[int], targets: Sequence[int]) -> Any:
        """Losses in nats of some tokens of a text, float32 [targets], with a gradient.

        ids: all tokens, read in one pass. targets: rising indices into `ids`, from 1 on.
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        model, head = self.model, self.model.get_output_embeddings()
        device = model.get_input_embeddings().weight.device
        sequence = torch.tensor([list(ids)], device=device)
        with _recomputed(model, len(ids) >= CHECKPOINTED):
            states = backbone_of(model)(input_ids=sequence, use_cache=False).last_hidden_state[0]
        kept = states[[index - 1 for index in targets]].to(head.weight.device)
        wanted = torch.tensor([ids[index] for index in targets], device=kept.device)

        def block(rows: Any, tokens: Any) -> Any:
            return torch.nn.functional.cross_entropy(differentiable_logits(model, rows), tokens, reduction="none")

        size = max(1, ROWS // int(head.weight.shape[0]))
        parts = zip(kept.split(size), wanted.split(size), strict=True)
        return torch.cat([checkpoint(block, rows, tokens, use_reentrant=False) for rows, tokens in parts])


@contextmanager
def differentiable(model: Any, schedule: Schedule, spec: RopeSpec) -> Iterator[Differentiable]:
    """The model with a gradient, while it is entered, `backward` included; then it is as it was.

    model: of transformers, loaded from the source. schedule: that it computes at first. spec: the RoPE of the source.
    Raises BadSource where its rotary modules are not of the known shape, RopeconvError where no gradient arrives.
    """
    if has_decoder(model):
        raise RopeconvError(f"{type(model).__name__} reads a text in an encoder, so there is no loss to tune with")
    undo = patch(model, schedule, spec)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    parts = list(rotary_modules(model))
    before = [(module, f"{prefix}inv_freq", vars(module).get("forward")) for module, prefix in parts]
    buffers = [module._buffers.get(name) for module, name, _ in before]
    try:
        if any(buffer is None for buffer in buffers):
            raise BadSource(f"{type(model).__name__} keeps its frequencies in no buffer, so it cannot be tuned")
        for weight in trained:
            weight.requires_grad_(False)
        for module, _ in parts:
            module.forward = _undecorated(module)
        yield Differentiable(model, parts)
    finally:
        for (module, name, forward), buffer in zip(before, buffers, strict=True):
            module._buffers[name] = buffer
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward
        for weight in trained:
            weight.requires_grad_(True)
        undo()


def _undecorated(module: Any) -> Callable[..., Any]:
    """The forward of a rotary module without `torch.no_grad` and what computes its frequencies anew at every pass."""
    forward = type(module).forward
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return forward.__get__(module)  # type: ignore[no-any-return]


@contextmanager
def _recomputed(model: Any, wanted: bool) -> Iterator[None]:
    """Computes the activations of each layer twice instead of keeping them, while it is entered."""
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if wanted and isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        layer.gradient_checkpointing = True
        layer.training = True  # of the layer alone: what is in it, dropout too, stays in evaluation mode
    try:
        yield
    finally:
        for layer in layers:
            layer.training = layer.gradient_checkpointing = False
