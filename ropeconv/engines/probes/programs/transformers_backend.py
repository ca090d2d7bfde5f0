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
    Question = dict[str, Any]
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


def read(model: Any, layers: list[Any], question: Question) -> Answer:
    """Return the RoPE frequencies and attention factors of each layer of a transformers model.

    Args:
        model: A model of transformers that vLLM or SGLang runs, with one rotary embedding for all
            layers.
        layers: The layers of the model.
        question: {"trained": 4096, "context": 131072}, say: the two lengths in tokens. LongRoPE has
            other frequencies within the trained length, so both lengths are read.

    Returns:
        {"ropes": [{"inv_freq": [...], "attention_factor": 1.0}], "layers": [0, 0, None], ...}, say:
        each set of frequencies once, and the number of its set for each layer, None for a layer
        that does not rotate. The docstring of `probe_protocol` explains the other keys.
    """
    rotary = rotary_embedding_of(model)
    settings = getattr(rotary.config, "rope_parameters", None) or {}
    if settings.get("llama_4_scaling_beta"):
        raise probe_protocol.Unseen("its class scales queries by position, which is not seen here")

    rope_by_layer_type: dict[str | None, Answer] = {}  # layers of one type rotate alike
    ropes: list[Answer | None] = []  # one for each layer; None where the layer does not rotate
    facts: Answer = {}  # what holds for the whole model, such as {"scaling": 0.125}
    for layer in layers:
        attention = attention_of(layer)
        if attention is None:  # such as a Mamba layer
            ropes.append(None)
            continue
        logit_factor = logit_scale(attention)
        if logit_factor is not None and "scaling" not in facts:
            facts["scaling"] = logit_factor
        if not rotates(attention, rotary.config.model_type):
            ropes.append(None)
            continue

        # such as "sliding_attention"; None in a model whose layers all rotate alike
        layer_type = layer_type_of(rotary, layer, attention)
        if layer_type not in rope_by_layer_type:
            rope_by_layer_type[layer_type] = read_rotary(rotary, layer_type, question)
        ropes.append(rope_by_layer_type[layer_type])

    # `mixed`: vLLM and SGLang compute a long prompt in several passes (chunked prefill). LongRoPE
    # chooses its frequencies for each pass, so one prompt is computed with both lists.
    return probe_protocol.answer(ropes, backend="transformers", mixed=True, **facts)


def logit_scale(attention: Any) -> float | None:
    """Return the factor on the logits of an attention, such as 1 / sqrt(head_dim).

    Args:
        attention: The attention of a class of transformers.

    Returns:
        The factor; None where it is not known.
    """
    # vLLM 0.33 computes attention with an object of its own, `impl`, whose `scale` is the factor
    # (vllm/model_executor/models/transformers/base.py)
    for module in attention.modules():
        kernel = getattr(module, "impl", None)
        scale = getattr(kernel, "scale", None)
        if isinstance(scale, float):
            return scale

    # earlier releases of vLLM, and SGLang, use the factor of the class of transformers
    own_scale = getattr(attention, "scaling", None)
    if isinstance(own_scale, float):
        return own_scale
    return None


def layer_type_of(rotary: Any, layer: Any, attention: Any) -> str | None:
    """Return the type of a layer, such as "sliding_attention".

    None for a rotary embedding that rotates all layers alike, and so takes no type.
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


def read_rotary(rotary: Any, layer_type: str | None, question: Question) -> Answer:
    """Return the frequencies that a rotary embedding of transformers has for a type of layer.

    Args:
        rotary: The embedding.
        layer_type: The type of layer, such as "sliding_attention"; None where the embedding has one
            set of frequencies.
        question: {"trained": 4096, "context": 131072}, say: the two lengths in tokens.
    """
    with torch.device("cpu"):
        # the tables of the model may be on meta, without numbers, so another embedding is made
        rotary_on_cpu = type(rotary)(rotary.config)
        inv_freq, factor = read_for_length(rotary_on_cpu, layer_type, question["context"])
        short_inv_freq, short_factor = read_for_length(
            rotary_on_cpu, layer_type, question["trained"]
        )
    return probe_protocol.rope(inv_freq, factor, short_inv_freq, short_factor)


def read_for_length(rotary: Any, layer_type: str | None, length: int) -> tuple[list[float], float]:
    """Return the frequencies and the attention factor of a rotary embedding for a prompt.

    The embedding computes two positions of the prompt: the last one, which decides the frequencies
    of LongRoPE, and position 1, at which the angle of each pair is its frequency.

    Args:
        rotary: An embedding of transformers on the CPU.
        layer_type: The type of layer, such as "sliding_attention"; None where the embedding has one
            set of frequencies.
        length: The length of the prompt in tokens.
    """
    positions = torch.tensor([[1, length - 1]])
    states = torch.zeros(1, 1)  # the embedding reads only their dtype and device
    arguments: list[Any] = [states, positions]
    if layer_type is not None:
        arguments.append(layer_type)
    try:
        tables = rotary(*arguments)
    except Exception as error:
        raise probe_protocol.Refused(stage="forward", error=error) from error
    if isinstance(tables, torch.Tensor):  # DeepSeek V2: complex numbers cos + i sin
        tables = (tables.real, tables.imag)
    cos, sin = tables  # [batch, positions, width]
    return first_position(cos[0, 0].double(), sin[0, 0].double())


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
