"""A model with a gradient of its losses by its frequencies and its attention factor, for `tune`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import BadSource
from ...formats.disk import human
from ...rope.errors import RopeconvError
from ...rope.lengths import format_tokens
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from .engine import TransformersEngine, backbone_of, has_decoder
from .memory import free_bytes
from .patch import patch, rotary_modules

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedModel

CHECKPOINTED = 2048
"""Tokens from which on the activations of a layer are computed again in the backward pass, and not
kept.
"""
ROWS = 1 << 24
"""Numbers of logits that exist at a time."""


class Differentiable:
    """A model with frozen weights, whose frequencies and attention factor are tensors with a
    gradient.

    parts: the rotary modules that `differentiable` has replaced, and the prefix of the names of
    their frequencies.
    """

    def __init__(self, model: PreTrainedModel, parts: Sequence[tuple[Module, str]]) -> None:
        self.model = model
        self._engine = TransformersEngine(model)
        self._parts = parts

    def use(self, inv_freq: Tensor, attention_factor: Tensor) -> None:
        """Use tensors in the next pass.

        inv_freq: [rotary_dim / 2], radians per token. attention_factor: scalar, multiplies cos and
        sin.
        """
        import torch

        for module, prefix in self._parts:
            device = module._buffers[f"{prefix}inv_freq"].device
            module._buffers[f"{prefix}inv_freq"] = inv_freq.to(device, torch.float32)
            setattr(
                module, f"{prefix}attention_scaling", attention_factor.to(device, torch.float32)
            )

    def losses(self, ids: Sequence[int], targets: Sequence[int]) -> Tensor:
        """Losses in nats of some tokens of a text, float32 [targets], with a gradient.

        ids: all tokens, read in one pass. targets: rising indices into `ids`, from 1 on.
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        model = self.model
        engine = self._engine
        head = self.model.get_output_embeddings()
        device = model.get_input_embeddings().weight.device
        sequence = torch.tensor([list(ids)], device=device)
        with _recomputed(model, len(ids) >= CHECKPOINTED):
            states = backbone_of(model)(input_ids=sequence, use_cache=False).last_hidden_state[0]
        kept = states[[index - 1 for index in targets]].to(head.weight.device)
        expected = torch.tensor([ids[index] for index in targets], device=kept.device)

        def block(rows: Tensor, tokens: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(
                engine.head(rows, gradient=True), tokens, reduction="none"
            )

        size = max(1, ROWS // int(head.weight.shape[0]))
        parts = zip(kept.split(size), expected.split(size), strict=True)
        return torch.cat(
            [checkpoint(block, rows, tokens, use_reentrant=False) for rows, tokens in parts]
        )


def check_gradient(model: PreTrainedModel, tokens: int) -> None:
    """Raises RopeconvError where the hidden states that a gradient keeps, one per token and layer,
    exceed the memory.

    model: the loaded one. tokens: of one sequence.
    """
    config = model.config.get_text_config()
    devices = {weight.device for weight in model.parameters()}
    size = tokens * config.num_hidden_layers * config.hidden_size * model.dtype.itemsize
    free = sum(free_bytes(str(device)) for device in devices)
    if size > free:
        raise RopeconvError(
            f"a gradient over {format_tokens(tokens)} tokens keeps {human(size)} of hidden states,"
            f" and {human(free)} are free on {', '.join(sorted(map(str, devices)))}; give a shorter"
            " --context, or several devices with --device-map auto"
        )


@contextmanager
def deterministic() -> Iterator[None]:
    """Let torch use kernels that give the same numbers again, while it is entered; flash attention
    has such a one.

    With `warn_only`, the gradients of attention would come from its faster kernels. Raises
    RopeconvError for an operation that has no deterministic kernel on its device.
    """
    import torch

    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as problem:
        operation, unavailable, _ = str(problem).partition(
            " does not have a deterministic implementation"
        )
        if not unavailable:
            raise
        raise RopeconvError(
            f"{operation} gives other numbers every time on this device; use --device cpu"
        ) from None
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def differentiable(
    model: PreTrainedModel, schedule: Schedule, spec: RopeSpec
) -> Iterator[Differentiable]:
    """The model with a gradient, while it is entered, `backward` included; then it is as it was.

    model: of transformers, loaded from the source. schedule: that it computes at first. spec: the
    RoPE of the source. Raises BadSource where its rotary modules are not of the known shape,
    RopeconvError where no gradient arrives.
    """
    if has_decoder(model):
        raise RopeconvError(
            f"{type(model).__name__} reads a text in an encoder, so it has no loss to tune"
        )
    with ExitStack() as stack:
        stack.callback(patch(model, schedule, spec))
        parts = list(rotary_modules(model))
        for module, prefix in parts:
            buffer = module._buffers.get(f"{prefix}inv_freq")
            if buffer is None:
                raise BadSource(
                    f"{type(model).__name__} has no buffer with its frequencies, so it cannot be"
                    " tuned"
                )
            stack.callback(module._buffers.__setitem__, f"{prefix}inv_freq", buffer)
            if "forward" in vars(module):
                stack.callback(setattr, module, "forward", module.forward)
            else:
                stack.callback(delattr, module, "forward")
            module.forward = _undecorated(module)
        for weight in model.parameters():
            if weight.requires_grad:
                stack.callback(weight.requires_grad_, True)
                weight.requires_grad_(False)
        with deterministic():
            yield Differentiable(model, parts)


def _undecorated(module: Module) -> Callable[..., Any]:
    """The forward of a rotary module without its decorators, which stop gradients and recompute
    frequencies.
    """
    forward = type(module).forward
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return forward.__get__(module)  # type: ignore[no-any-return]


@contextmanager
def _recomputed(model: PreTrainedModel, recompute: bool) -> Iterator[None]:
    """Compute the activations of each layer twice instead of keeping them, while it is entered."""
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [
        module
        for module in model.modules()
        if recompute and isinstance(module, GradientCheckpointingLayer)
    ]
    for layer in layers:
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        layer.gradient_checkpointing = True
        layer.training = (
            True  # of the layer alone: what is in it, dropout too, stays in evaluation mode
        )
    try:
        yield
    finally:
        for layer in layers:
            layer.training = layer.gradient_checkpointing = False
