"""A language model in two parts: hidden states from its backbone, and their logits from its head, where it has one.

Hidden states take some kilobytes per position and are kept on the host; logits of a long text would not fit there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...errors import BadSource
from ...formats.disk import human
from ...rope.errors import RopeconvError
from ...rope.lengths import format_tokens
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from .memory import free_bytes
from .patch import patch, rotary_modules

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedModel


def backbone_of(model: PreTrainedModel) -> PreTrainedModel:
    """The backbone of a language model: all but its head."""
    if model.get_output_embeddings() is None:
        return model
    base = model.base_model
    return model.model if base is model else base  # Llama 4 names a prefix that it does not have


def has_decoder(model: PreTrainedModel) -> bool:
    """Whether a model has an encoder for its input, and a decoder with tokens of its own."""
    return "decoder_input_ids" in inspect.signature(backbone_of(model).forward).parameters


def has_cache(model: PreTrainedModel) -> bool:
    """Whether a model can read a text in chunks with a key-value cache."""
    return "past_key_values" in inspect.signature(backbone_of(model).forward).parameters and not has_decoder(model)


def read(
    model: PreTrainedModel,
    ids: Sequence[int],
    positions: Sequence[int],
    kept: Sequence[int],
    chunk: int,
    advance: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Tensor]:
    """Yield the final hidden states of some tokens chunk by chunk, [rows, hidden_size] in the model's dtype and place.

    ids: all tokens. positions: of every token, rising; gaps are allowed. kept: rising indices into `ids` of the tokens
    whose states are returned. chunk: tokens that the backbone reads at a time, with a key-value cache; models with an
    encoder read all at once, and the states are those of a decoder where there is one. advance: called with the tokens
    read since the last call. stopped: called after each chunk; True ends the run early, with the rows read so far.
    """
    import torch

    from .chunks import preallocate, without_masks

    backbone, device = backbone_of(model), model.get_input_embeddings().weight.device
    gaps = any(later != earlier + 1 for earlier, later in pairwise(positions))
    sequence, places = (torch.tensor([list(values)], device=device) for values in (ids, positions))
    cache, count = None, len(ids)
    cached, decodes = has_cache(model), has_decoder(model)
    chunk = chunk if cached else count
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        given: dict[str, object] = {"input_ids": sequence[:, start:stop], "position_ids": places[:, start:stop]}
        if gaps:  # without a mask, transformers takes a gap in the positions for the beginning of another sequence
            given["attention_mask"] = torch.ones((1, stop), dtype=torch.long, device=device)
        if decodes:  # both halves read the same tokens at the same places
            given |= {"decoder_input_ids": sequence, "decoder_position_ids": places}
        elif count > chunk:
            given |= {"past_key_values": cache, "use_cache": True}
        elif cached:  # with a cache no gap begins a sequence: Molmo 2 makes no mask of one of ones
            given["use_cache"] = gaps and hasattr(backbone, "language_model")
        with torch.no_grad(), without_masks(model):
            out = backbone(**given)
        cache = getattr(out, "past_key_values", None)
        if start == 0 and count > chunk:
            preallocate(cache, count)
        yield out.last_hidden_state[0, [index - start for index in kept if start <= index < stop]]
        del out
        advance(stop - start)
        if stopped():
            break


def hidden_states(
    model: PreTrainedModel,
    ids: Sequence[int],
    positions: Sequence[int],
    kept: Sequence[int],
    chunk: int,
    advance: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Tensor:
    """The states of `read`, [len(kept), hidden_size] in the model's dtype, on the host."""
    import torch

    return torch.cat([rows.cpu() for rows in read(model, ids, positions, kept, chunk, advance, stopped)])


def logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits of hidden states, float32 [positions, vocabulary], without a gradient."""
    import torch

    with torch.no_grad():
        return differentiable_logits(model, hidden)


def differentiable_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits of hidden states, float32 [positions, vocabulary], by the model's own forward with its backbone replaced.

    So the scales and caps that some families apply after the head are included. model: of transformers. hidden:
    [positions, hidden_size]. Raises RopeconvError where it has no head.
    """
    if model.get_output_embeddings() is None:
        raise RopeconvError(f"{type(model).__name__} has no logits; compare its hidden states")
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPast

    class Done(BaseModelOutputWithPast):  # type: ignore[misc]
        """The output of any backbone: fields of other outputs, which heads pass on, are None."""

        def __getattr__(self, name: str) -> None:
            if name.startswith("__"):
                raise AttributeError(name)

    backbone, device = backbone_of(model), model.get_output_embeddings().weight.device
    done = Done(last_hidden_state=hidden[None].to(device))
    own = vars(backbone).get("forward")
    backbone.forward = lambda *args, **given: done
    try:
        found = model(input_ids=torch.zeros((1, len(hidden)), dtype=torch.long, device=device), use_cache=False)
    finally:
        del backbone.forward
        if own is not None:
            backbone.forward = own
    return found.logits[0].float()


def keep_head(model: PreTrainedModel) -> Module:
    """Remove the layers of a model, which frees their memory, and return it; `logits` still works."""
    from torch import nn

    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    for module in backbone_of(model).modules():
        for name, child in list(module.named_children()):
            tied = child is embeddings and head is not None and head.weight is embeddings.weight
            if isinstance(child, nn.ModuleList) or (child is embeddings and not tied):
                setattr(module, name, nn.ModuleList())
    return model


def first_not_finite(model: PreTrainedModel, ids: Sequence[int], chunk: int) -> str:
    """The name of the module whose output is the first with an infinity or NaN in it; empty where all are finite.

    model: of transformers. ids: that it reads, from position 0 on. chunk: tokens at a time.
    """
    found: list[str] = []

    def watch(name: str) -> Callable[[Module, object, object], None]:
        def seen(module: Module, args: object, output: object) -> None:
            if not found and not all(bool(tensor.isfinite().all()) for tensor in _tensors(output)):
                found.append(name)

        return seen

    backbone = backbone_of(model)
    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if module is not model]
    try:
        for rows in read(model, ids, range(len(ids)), range(len(ids)), chunk, stopped=lambda: bool(found)):
            if not found and backbone is not model:
                logits(model, rows[-1:])
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""


def _tensors(output: object) -> Iterator[Tensor]:
    """The tensors of numbers in the output of a module; key-value caches are left out."""
    import torch

    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part)
    elif hasattr(output, "last_hidden_state"):
        yield from _tensors(output.last_hidden_state)


CHECKPOINTED = 2048
"""Tokens from which on the activations of a layer are computed again in the backward pass, and not kept."""
ROWS = 1 << 24
"""Numbers of logits that exist at a time."""


class Differentiable:
    """A model with frozen weights, whose frequencies and attention factor are tensors with a gradient.

    parts: the rotary modules that `differentiable` has replaced, and the prefix of the names of their frequencies.
    """

    def __init__(self, model: PreTrainedModel, parts: Sequence[tuple[Module, str]]) -> None:
        self.model, self._parts = model, parts

    def use(self, inv_freq: Tensor, attention_factor: Tensor) -> None:
        """Use tensors in the next pass.

        inv_freq: [rotary_dim / 2], radians per token. attention_factor: scalar, multiplies cos and sin.
        """
        import torch

        for module, prefix in self._parts:
            device = module._buffers[f"{prefix}inv_freq"].device
            module._buffers[f"{prefix}inv_freq"] = inv_freq.to(device, torch.float32)
            setattr(module, f"{prefix}attention_scaling", attention_factor.to(device, torch.float32))

    def losses(self, ids: Sequence[int], targets: Sequence[int]) -> Tensor:
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

        def block(rows: Tensor, tokens: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(differentiable_logits(model, rows), tokens, reduction="none")

        size = max(1, ROWS // int(head.weight.shape[0]))
        parts = zip(kept.split(size), wanted.split(size), strict=True)
        return torch.cat([checkpoint(block, rows, tokens, use_reentrant=False) for rows, tokens in parts])


def check_gradient(model: PreTrainedModel, tokens: int) -> None:
    """Raises RopeconvError where the hidden states that a gradient keeps, one per token and layer, exceed the memory.

    model: as it is loaded. tokens: of one sequence.
    """
    config, devices = model.config.get_text_config(), {weight.device for weight in model.parameters()}
    size = tokens * config.num_hidden_layers * config.hidden_size * model.dtype.itemsize
    free = sum(free_bytes(str(device)) for device in devices)
    if size > free:
        raise RopeconvError(
            f"a gradient over {format_tokens(tokens)} tokens keeps {human(size)} of hidden states, and {human(free)} "
            f"are free on {', '.join(sorted(map(str, devices)))}; give a shorter --context, or several devices with "
            "--device-map auto"
        )


@contextmanager
def deterministic() -> Iterator[None]:
    """Let torch use kernels that give the same numbers again, while it is entered; flash attention has such a one.

    With `warn_only`, the gradients of attention would come from its faster kernels. Raises RopeconvError for an
    operation that has no such kernel on its device.
    """
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as problem:
        operation, unavailable, _ = str(problem).partition(" does not have a deterministic implementation")
        if not unavailable:
            raise
        raise RopeconvError(f"{operation} gives other numbers every time on this device; use --device cpu") from None
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def differentiable(model: PreTrainedModel, schedule: Schedule, spec: RopeSpec) -> Iterator[Differentiable]:
    """The model with a gradient, while it is entered, `backward` included; then it is as it was.

    model: of transformers, loaded from the source. schedule: that it computes at first. spec: the RoPE of the source.
    Raises BadSource where its rotary modules are not of the known shape, RopeconvError where no gradient arrives.
    """
    if has_decoder(model):
        raise RopeconvError(f"{type(model).__name__} reads a text in an encoder, so it has no loss to tune")
    undo = patch(model, schedule, spec)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    parts = list(rotary_modules(model))
    before = [(module, f"{prefix}inv_freq", vars(module).get("forward")) for module, prefix in parts]
    buffers = [module._buffers.get(name) for module, name, _ in before]
    try:
        if any(buffer is None for buffer in buffers):
            raise BadSource(f"{type(model).__name__} has no buffer with its frequencies, so it cannot be tuned")
        for weight in trained:
            weight.requires_grad_(False)
        for module, _ in parts:
            module.forward = _undecorated(module)
        with deterministic():
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


def _undecorated(module: Module) -> Callable[..., Any]:
    """The forward of a rotary module without its decorators, which stop gradients and recompute frequencies."""
    forward = type(module).forward
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    return forward.__get__(module)  # type: ignore[no-any-return]


@contextmanager
def _recomputed(model: PreTrainedModel, wanted: bool) -> Iterator[None]:
    """Compute the activations of each layer twice instead of keeping them, while it is entered."""
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
