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
"""Tokens from which on activations are computed again in the backward pass, and not kept."""
LOGITS_PER_BLOCK = 1 << 24
"""Numbers of logits that exist at a time."""


class Differentiable:
    """A model with frozen weights, whose frequencies and attention factor have a gradient."""

    def __init__(self, model: PreTrainedModel, parts: Sequence[tuple[Module, str]]) -> None:
        """Name the parts of a model that `differentiable` has prepared.

        Args:
            model: The model.
            parts: Its rotary modules, each with the prefix of the names of its frequencies.
        """
        self.model = model
        self._engine = TransformersEngine(model)
        self._parts = parts

    def use(self, inv_freq: Tensor, attention_factor: Tensor) -> None:
        """Let the model compute its next pass with these frequencies, which may have gradients.

        Args:
            inv_freq: [rotary_dim / 2], radians per token.
            attention_factor: A scalar, which multiplies cos and sin.
        """
        import torch

        for module, prefix in self._parts:
            device = module._buffers[f"{prefix}inv_freq"].device
            module._buffers[f"{prefix}inv_freq"] = inv_freq.to(device, torch.float32)
            scaling = attention_factor.to(device, torch.float32)
            setattr(module, f"{prefix}attention_scaling", scaling)

    def losses(self, ids: Sequence[int], targets: Sequence[int]) -> Tensor:
        """Return losses in nats of some tokens of a text, float32 [targets], with a gradient.

        Args:
            ids: All tokens, read in one pass.
            targets: Rising indices into `ids`, from 1 on.
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        # one pass over the text, without the head; for a long one, what the layers compute is not
        # kept for the backward pass, but computed again there
        model = self.model
        engine = self._engine
        head = model.get_output_embeddings()
        device = model.get_input_embeddings().weight.device
        sequence = torch.tensor([list(ids)], device=device)
        with _recomputed(model, len(ids) >= CHECKPOINTED):
            outputs = backbone_of(model)(input_ids=sequence, use_cache=False)

        # the state after a token predicts the next one
        before_targets = [index - 1 for index in targets]
        states = outputs.last_hidden_state[0, before_targets].to(head.weight.device)
        expected = torch.tensor([ids[index] for index in targets], device=states.device)

        def block_losses(rows: Tensor, tokens: Tensor) -> Tensor:
            """Return the losses of some targets, from their states [rows, hidden_size]."""
            logits = engine.head(rows, gradient=True)
            return torch.nn.functional.cross_entropy(logits, tokens, reduction="none")

        # the logits, [targets, vocabulary], may need more memory than all layers. So they are made
        # block by block, and those of a block are not kept either
        vocabulary = int(head.weight.shape[0])
        block_size = max(1, LOGITS_PER_BLOCK // vocabulary)
        losses = []
        blocks = zip(states.split(block_size), expected.split(block_size), strict=True)
        for rows, tokens in blocks:
            losses.append(checkpoint(block_losses, rows, tokens, use_reentrant=False))
        return torch.cat(losses)


def check_gradient(model: PreTrainedModel, tokens: int) -> None:
    """Check that the hidden states that a gradient keeps, one per token and layer, fit the memory.

    Args:
        model: The loaded model.
        tokens: The length of one sequence.

    Raises:
        RopeconvError: They do not fit.
    """
    config = model.config.get_text_config()
    devices = sorted({str(weight.device) for weight in model.parameters()})
    size = tokens * config.num_hidden_layers * config.hidden_size * model.dtype.itemsize
    free = sum(free_bytes(device) for device in devices)
    if size > free:
        raise RopeconvError(
            f"a gradient over {format_tokens(tokens)} tokens keeps {human(size)} of hidden states,"
            f" and {human(free)} are free on {', '.join(devices)}; give a shorter --context, or"
            " several devices with --device-map auto"
        )


@contextmanager
def deterministic() -> Iterator[None]:
    """Let torch use only kernels that give the same numbers in each run, inside this block.

    For the gradients of flash attention torch has two kernels, and only the slower one is such. It
    is not enough to let torch warn (`warn_only`): it would then use the faster one.

    Raises:
        RopeconvError: An operation has no deterministic kernel on its device.
    """
    import torch

    was_enabled = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
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
        torch.use_deterministic_algorithms(was_enabled, warn_only=only_warned)


@contextmanager
def differentiable(
    model: PreTrainedModel, schedule: Schedule, spec: RopeSpec
) -> Iterator[Differentiable]:
    """Let the RoPE frequencies of a model be trained in the body of a `with` statement.

    `backward` must run in the body too. At the end of the body the model is as it was before.

    Args:
        model: The model of transformers.
        schedule: The frequencies and the attention factor that the model computes at first.
        spec: The RoPE of the checkpoint from which the model was loaded.

    Raises:
        BadSource: The rotary modules of the model do not store frequencies as those of transformers
            do.
        RopeconvError: The model has an encoder and a decoder.
    """
    # T5Gemma, for example, reads a text in its encoder, and the decoder generates the answer
    has_encoder_and_decoder = has_decoder(model)
    if has_encoder_and_decoder:
        raise RopeconvError(
            f"{type(model).__name__} reads a text in an encoder, so it has no loss to tune"
        )

    # the stack undoes everything in the reverse order
    with ExitStack() as stack:
        has_latent_attention = spec.mla
        undo_patch = patch(model, schedule, has_latent_attention)
        stack.callback(undo_patch)
        parts = list(rotary_modules(model))

        for module, prefix in parts:
            # `Differentiable.use` replaces this buffer by a tensor with a gradient
            buffer = module._buffers.get(f"{prefix}inv_freq")
            if buffer is None:
                raise BadSource(
                    f"{type(model).__name__} has no buffer with its frequencies, so it cannot be"
                    " tuned"
                )
            stack.callback(module._buffers.__setitem__, f"{prefix}inv_freq", buffer)

            # The module gets an attribute `forward`, which hides the method of its class. At the
            # end the attribute is removed, or becomes again what accelerate had set it to.
            if "forward" in vars(module):
                stack.callback(setattr, module, "forward", module.forward)
            else:
                stack.callback(delattr, module, "forward")
            module.forward = _undecorated_forward(module)

        # gradients of weights would take as much memory as the weights
        for weight in model.parameters():
            if weight.requires_grad:
                stack.callback(weight.requires_grad_, True)
                weight.requires_grad_(False)

        with deterministic():
            yield Differentiable(model, parts)


def _undecorated_forward(module: Module) -> Callable[..., Any]:
    """Return the `forward` of a module without the decorators of transformers.

    One of them is torch.no_grad, which stops gradients, and another changes the frequencies for
    long prompts.
    """
    # a decorated function has the function inside it as `__wrapped__`
    forward = type(module).forward
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return forward.__get__(module)  # type: ignore[no-any-return]


@contextmanager
def _recomputed(model: PreTrainedModel, recompute: bool) -> Iterator[None]:
    """Let a model keep no activations inside its layers, in the body of a `with` statement.

    The forward pass then keeps only the input of each layer, and the backward pass computes the
    layer again from it (gradient checkpointing): slower, in a fraction of the memory.

    Args:
        model: The model.
        recompute: Whether to do so; False changes nothing.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    if not recompute:
        yield
        return

    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    for layer in layers:
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        layer.gradient_checkpointing = True
        # transformers checkpoints a layer only where its `training` is True (modeling_layers.py).
        # `layer.train()` would set that in its parts too, and so switch their dropout on.
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = False
            layer.training = False
