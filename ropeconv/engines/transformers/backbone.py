"""A language model in two parts: hidden states from its backbone, and their logits from its head, where it has one.

Hidden states take some kilobytes per position and are kept on the host; logits of a long text would not fit there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from ...errors import RopeconvError


def backbone_of(model: Any) -> Any:
    """The backbone of a language model: all but its head."""
    if model.get_output_embeddings() is None:
        return model
    base = model.base_model
    return model.model if base is model else base  # Llama 4 names a prefix that it does not have


def has_decoder(model: Any) -> bool:
    """Whether a model reads its input in an encoder, and gives states of a decoder that reads tokens of its own."""
    return "decoder_input_ids" in inspect.signature(backbone_of(model).forward).parameters


def read(
    model: Any,
    ids: Sequence[int],
    positions: Sequence[int],
    kept: Sequence[int],
    chunk: int,
    advance: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Any]:
    """Yields the final hidden states of some tokens chunk by chunk, [rows, hidden_size] in the model's dtype and place.

    model: a language model of transformers. ids: all tokens. positions: of every token, rising; gaps are allowed. kept:
    rising indices into `ids` of the tokens whose states are returned. chunk: tokens that the backbone reads at a time,
    with a key-value cache where there are more; an encoder has none and reads all at once, and so does a model with an
    encoder and a decoder, whose states are those of the decoder. advance: called with the
    tokens read since the last call. stopped: called after each chunk; True ends the run early, with the rows read so
    far.
    """
    import torch

    backbone, device = backbone_of(model), model.get_input_embeddings().weight.device
    gaps = any(later != earlier + 1 for earlier, later in pairwise(positions))
    sequence, places = (torch.tensor([list(values)], device=device) for values in (ids, positions))
    cache, count = None, len(ids)
    cached, decodes = "past_key_values" in inspect.signature(backbone.forward).parameters, has_decoder(model)
    chunk = chunk if cached and not decodes else count
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        given: dict[str, Any] = {"input_ids": sequence[:, start:stop], "position_ids": places[:, start:stop]}
        if gaps:  # without a mask, transformers takes a gap in the positions for the beginning of another sequence
            given["attention_mask"] = torch.ones((1, stop), dtype=torch.long, device=device)
        if decodes:  # both halves read the same tokens at the same places
            given |= {"decoder_input_ids": sequence, "decoder_position_ids": places}
        elif count > chunk:
            given |= {"past_key_values": cache, "use_cache": True}
        elif cached:  # with a cache no gap begins a sequence: Molmo 2 makes no mask of one of ones
            given["use_cache"] = gaps and hasattr(backbone, "language_model")
        with torch.no_grad():
            out = backbone(**given)
        cache = getattr(out, "past_key_values", None)
        yield out.last_hidden_state[0, [index - start for index in kept if start <= index < stop]]
        del out
        advance(stop - start)
        if stopped():
            break


def hidden_states(
    model: Any,
    ids: Sequence[int],
    positions: Sequence[int],
    kept: Sequence[int],
    chunk: int,
    advance: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Any:
    """Final hidden states of some tokens, [len(kept), hidden_size] in the model's dtype, on the host.

    model, ids, positions, kept, chunk, advance, stopped: as in `read`.
    """
    import torch

    return torch.cat([rows.cpu() for rows in read(model, ids, positions, kept, chunk, advance, stopped)])


def logits(model: Any, hidden: Any) -> Any:
    """Logits of hidden states, float32 [positions, vocabulary]. model, hidden: as in `differentiable_logits`."""
    import torch

    with torch.no_grad():
        return differentiable_logits(model, hidden)


def differentiable_logits(model: Any, hidden: Any) -> Any:
    """Logits of hidden states, float32 [positions, vocabulary], by the model's own forward with its backbone replaced.

    So the scales and caps that some families apply after the head are included. model: of transformers. hidden:
    [positions, hidden_size]. Raises RopeconvError where it has no head.
    """
    if model.get_output_embeddings() is None:
        raise RopeconvError(f"{type(model).__name__} has no logits; compare its hidden states")
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPast

    class Done(BaseModelOutputWithPast):  # type: ignore[misc]
        """What the backbone of any model returns: fields of other outputs, which heads hand on, are None."""

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


def keep_head(model: Any) -> Any:
    """Removes the layers of a model, which frees their memory, and returns it; `logits` still works."""
    from torch import nn

    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    for module in backbone_of(model).modules():
        for name, child in list(module.named_children()):
            tied = child is embeddings and head is not None and head.weight is embeddings.weight
            if isinstance(child, nn.ModuleList) or (child is embeddings and not tied):
                setattr(module, name, nn.ModuleList())
    return model
