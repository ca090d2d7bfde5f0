"""A model in two halves: hidden states of chosen positions from the backbone, and their logits from the head.

Hidden states are some kilobytes a position and can wait on the host; logits of a whole text would not fit anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any


def backbone_of(model: Any) -> Any:
    """The part of a causal language model that ends before its head."""
    base = model.base_model
    return model.model if base is model else base  # Llama 4 names a prefix that it does not have


def hidden_states(
    model: Any,
    ids: Sequence[int],
    positions: Sequence[int],
    kept: Sequence[int],
    chunk: int,
    advance: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Any:
    """Final hidden states of the tokens `kept` (rising indices into `ids`), [len(kept), width], on the host.

    positions: of every token. The backbone sees `chunk` tokens at a time, with a key-value cache where that takes
    several. advance: called with the tokens read. stopped: asked after each chunk whether to end early, with the rows
    that are there.
    """
    import torch

    backbone, device = backbone_of(model), model.get_input_embeddings().weight.device
    gaps = any(later != earlier + 1 for earlier, later in pairwise(positions))
    sequence, places = (torch.tensor([list(values)], device=device) for values in (ids, positions))
    cache, found, count = None, [], len(ids)
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        given: dict[str, Any] = {"input_ids": sequence[:, start:stop], "position_ids": places[:, start:stop]}
        if gaps:  # without a mask, transformers takes a gap in the positions for the beginning of another sequence
            given["attention_mask"] = torch.ones((1, stop), dtype=torch.long, device=device)
        if count > chunk:
            given |= {"past_key_values": cache, "use_cache": True}
        else:
            given["use_cache"] = False
        with torch.no_grad():
            out = backbone(**given)
        cache = getattr(out, "past_key_values", None)
        rows = [index - start for index in kept if start <= index < stop]
        found.append(out.last_hidden_state[0, rows].cpu())
        del out
        advance(stop - start)
        if stopped():
            break
    return torch.cat(found)


def logits(model: Any, hidden: Any) -> Any:
    """Logits of hidden states, [positions, vocabulary], float32: the model's own forward with a backbone that is done.

    So scales and caps that a family puts behind its head are part of it.
    """
    import torch
    from transformers.modeling_outputs import MoeModelOutputWithPast

    backbone, device = backbone_of(model), model.get_output_embeddings().weight.device
    done = MoeModelOutputWithPast(last_hidden_state=hidden[None].to(device))
    own = vars(backbone).get("forward")
    backbone.forward = lambda *args, **given: done
    try:
        with torch.no_grad():
            found = model(input_ids=torch.zeros((1, len(hidden)), dtype=torch.long, device=device), use_cache=False)
    finally:
        del backbone.forward
        if own is not None:
            backbone.forward = own
    return found.logits[0].float()


def keep_head(model: Any) -> Any:
    """The model without its layers, which gives their memory back; `logits` still works."""
    from torch import nn

    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    for module in backbone_of(model).modules():
        for name, child in list(module.named_children()):
            tied = child is embeddings and head is not None and head.weight is embeddings.weight
            if isinstance(child, nn.ModuleList) or (child is embeddings and not tied):
                setattr(module, name, nn.ModuleList())
    return model
