"""Read what a class of transformers rotates with that another runtime runs, as its backend.

vLLM and SGLang have such backends. They put their own attention into the class, and keep its
rotary embedding. `read` is the function to begin with.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
import transformers

if TYPE_CHECKING:
    from typing import Any

    from . import probe_protocol

    Answer = dict[str, Any]
else:  # a program has only this folder on its path
    import probe_protocol

ROTATES_WITH_WINDOW_ONLY = ("kolibri1",)
"""Model types of transformers whose layers without a window do not rotate."""


def takes(architecture: str) -> bool:
    """Whether vLLM runs the class of transformers for an architecture that it does not have."""
    model_class = getattr(transformers, architecture, None) if architecture else None
    for name in ("is_backend_compatible", "_can_set_attn_implementation"):
        if hasattr(model_class, name) and getattr(model_class, name)():
            return True
    return False


def read(model: Any, layers: list[Any], question: Answer) -> Answer:
    """Return the frequencies of each layer of a class of transformers that vLLM runs.

    transformers chooses frequencies by the largest position of a forward pass: LongRoPE has other
    ones within the trained length. So each type of layer is read twice, in a pass within the
    trained length, and in one that ends with the context.

    Args:
        model: The model, with one rotary embedding for all layers.
        layers: Its layers.
        question: {"trained": 4096, "context": 131072}, say: the two lengths in tokens.

    Returns:
        The keys of an answer, which the docstring of `probe_protocol` explains.
    """
    rotary = rotary_embedding_of(model)
    settings = getattr(rotary.config, "rope_parameters", None) or {}
    if settings.get("llama_4_scaling_beta"):
        raise probe_protocol.Unseen("its class scales queries by position, which is not seen here")

    rope_by_kind: dict[str | None, Answer] = {}  # layers of one type rotate alike
    ropes: list[Answer | None] = []  # None for a layer that does not rotate
    facts: Answer = {}
    for layer in layers:
        attention = attention_of(layer)
        if attention is None:  # such as a Mamba layer
            ropes.append(None)
            continue
        scaling = logit_scale(attention)
        if scaling is not None:
            facts.setdefault("scaling", scaling)
        if not rotates(attention, rotary.config.model_type):
            ropes.append(None)
            continue
        kind = kind_of(rotary, layer, attention)  # such as "sliding_attention"; None for one kind
        if kind not in rope_by_kind:
            rope_by_kind[kind] = read_rotary(rotary, kind, question)
        ropes.append(rope_by_kind[kind])
    # `mixed`: vLLM and SGLang compute a long prompt in several passes (chunked prefill), so that
    # one prompt mixes the frequencies for short and for long ones
    return probe_protocol.answer(ropes, backend="transformers", mixed=True, **facts)


def logit_scale(attention: Any) -> float | None:
    """Return the factor on the logits of an attention, such as 1 / sqrt(head_dim).

    None where it is unknown.

    Args:
        attention: The attention of a class of transformers.
    """
    # vLLM 0.33 puts a kernel of its own into the attention, as `impl`, with a factor that it reads
    # in the code of the class, or with that of Llama (transformers/base.py)
    for module in attention.modules():
        kernel = getattr(module, "impl", None)
        scale = getattr(kernel, "scale", None)
        if isinstance(scale, float):
            return scale

    # earlier releases of vLLM, and SGLang, compute with the factor of the class
    own_scale = getattr(attention, "scaling", None)
    if isinstance(own_scale, float):
        return own_scale
    return None


def kind_of(rotary: Any, layer: Any, attention: Any) -> str | None:
    """Return the type of a layer, such as "sliding_attention".

    None where the rotary embedding is the same for all types, and does not ask for one.
    """
    if "layer_type" not in inspect.signature(rotary.forward).parameters:
        return None
    for module in (layer, attention):
        for name in ("layer_type", "attention_type"):
            if isinstance(getattr(module, name, None), str):
                return str(getattr(module, name))
    return str(rotary.config.layer_types[getattr(attention, "layer_idx", 0)])


def rotary_embedding_of(model: Any) -> Any:
    """Return the rotary embedding of the text model, which all its layers share."""
    for name, module in model.named_modules():
        if name.endswith("rotary_emb") and "vision" not in name:
            return module
    raise AssertionError("the class of transformers has no rotary embedding")


def attention_of(layer: Any) -> Any:
    """Return the attention of a layer; None for a layer without attention."""
    for name, module in layer.named_modules():
        if name.endswith(("attn", "attention")):
            return module
    return None


def rotates(attention: Any, model_type: str) -> bool:
    """Whether an attention rotates queries and keys. Some layers of Llama 4 do not, say."""
    # `use_rope` is a flag, or a number in Llama 4
    has_no_rope = getattr(attention, "use_rope", True) in (False, 0)
    if has_no_rope:
        return False
    if model_type in ROTATES_WITH_WINDOW_ONLY:
        return bool(attention.is_sliding)
    return True


def read_rotary(rotary: Any, kind: str | None, question: Answer) -> Answer:
    """Return what a rotary embedding of transformers computes for a type of layer.

    Args:
        rotary: The embedding.
        kind: The type of layer, such as "sliding_attention"; None where the embedding has one set
            of frequencies.
        question: The trained length and the context, in tokens.
    """
    arguments_of_kind = () if kind is None else (kind,)
    with torch.device("cpu"):
        # the tables of the model may be on meta, without numbers, so another embedding is made
        fresh_rotary = type(rotary)(rotary.config)

        def read_for_length(length: int) -> tuple[list[float], float]:
            """Return inv_freq and attention factor for a prompt of this length.

            The embedding gets two of its positions: the last one, by which it chooses frequencies,
            and position 1, at which the angle of each pair is its frequency.
            """
            positions = torch.tensor([[1, length - 1]])
            states = torch.zeros(1, 1)  # the embedding reads only their dtype and device
            try:
                tables = fresh_rotary(states, positions, *arguments_of_kind)
            except Exception as error:
                raise probe_protocol.Refused(stage="forward", error=error) from error
            if isinstance(tables, torch.Tensor):  # cos + i sin, as in DeepSeek V2
                tables = (tables.real, tables.imag)
            cos, sin = tables  # [batch, positions, width]
            return first_position(cos[0, 0].double(), sin[0, 0].double())

        inv_freq, factor = read_for_length(question["context"])
        short_inv_freq, short_factor = read_for_length(question["trained"])
    return probe_protocol.rope(inv_freq, factor, short_inv_freq, short_factor)


def first_position(cos: torch.Tensor, sin: torch.Tensor) -> tuple[list[float], float]:
    """Return inv_freq and attention factor from the cosines and sines of position 1.

    Most tables have the value of each pair twice: in both halves, or in two neighbours. Others have
    it once.
    """
    half = len(cos) // 2
    one_of_each = slice(None)
    if torch.equal(sin[:half], sin[half:]):
        one_of_each = slice(half)
    elif torch.equal(sin[0::2], sin[1::2]):
        one_of_each = slice(0, None, 2)
    return probe_protocol.from_cos_sin(cos[one_of_each].tolist(), sin[one_of_each].tolist())
