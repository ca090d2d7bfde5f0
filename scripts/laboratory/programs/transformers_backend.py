"""Reads the rotary embedding of a model that vLLM or SGLang runs with the class of transformers,
their backend.
"""

from __future__ import annotations

import inspect
from typing import Any

import protocol
import torch
import transformers

WINDOW_ONLY = ("kolibri1",)
"""Model types whose layers without a window do not rotate, and say so in no attribute of their
own.
"""


def takes(architecture: str) -> bool:
    """Whether vLLM gives an architecture that it has not to its transformers backend
    (`models/registry.py`).
    """
    model_class = getattr(transformers, architecture, None)
    flags = (
        getattr(model_class, name, bool)
        for name in ("is_backend_compatible", "_can_set_attn_implementation")
    )
    return any(ask() for ask in flags)


def read(model: torch.nn.Module, layers: list[Any], context: int, trained: int) -> protocol.Answer:
    """The answer for a model of a transformers backend. layers: of the language model.

    transformers chooses frequencies by the largest position of a batch, so both sides of the
    trained length are asked.
    """
    rotaries = [
        module
        for name, module in model.named_modules()
        if name.endswith("rotary_emb") and "vision" not in name
    ]
    if not rotaries:
        raise RuntimeError("the model of transformers has no rotary embedding")
    window_only = rotaries[0].config.model_type in WINDOW_ONLY
    known: dict[str | None, protocol.Answer] = {}
    by_layer: list[protocol.Answer | None] = []
    scaling = None
    for layer in layers:
        attention = next(
            m for name, m in layer.named_modules() if name.endswith(("attn", "attention"))
        )
        scaling = getattr(attention, "scaling", None) if scaling is None else scaling
        if getattr(attention, "use_rope", True) in (False, 0) or (
            window_only and not attention.is_sliding
        ):
            by_layer.append(None)
            continue
        kind = _kind(rotaries[0], layer, attention)
        if kind not in known:
            known[kind] = _rope(rotaries[0], kind, context, trained)
        by_layer.append(known[kind])
    more = {"scaling": float(scaling)} if isinstance(scaling, float) else {}
    return protocol.answer(by_layer, backend="transformers", mixed=True, **more)


def _kind(rotary: Any, *places: Any) -> str | None:
    """The type of a layer, where the rotary embedding asks for it."""
    if "layer_type" not in inspect.signature(rotary.forward).parameters:
        return None
    for place in places:
        for name in ("layer_type", "attention_type"):
            if isinstance(getattr(place, name, None), str):
                return str(getattr(place, name))
    return str(rotary.config.layer_types[getattr(places[-1], "layer_idx", 0)])


def _rope(rotary: Any, kind: str | None, context: int, trained: int) -> protocol.Answer:
    with torch.device("cpu"):
        fresh = type(rotary)(rotary.config)
        more = () if kind is None else (kind,)
        try:
            short = _first(*fresh(torch.zeros(1, 1), torch.tensor([[1, trained - 1]]), *more))
            long = _first(*fresh(torch.zeros(1, 1), torch.tensor([[1, context - 1]]), *more))
        except Exception as error:
            raise protocol.Refused("forward", error) from error
    return protocol.rope(*long, *short)


def _first(cos: torch.Tensor, sin: torch.Tensor) -> tuple[list[float], float]:
    """inv_freq and attention_factor from the tables of a batch that begins at position 1, with
    pairs once or twice.
    """
    cos = cos[0, 0].double()
    sin = sin[0, 0].double()
    half = len(cos) // 2
    chosen = slice(None)
    if torch.equal(sin[:half], sin[half:]):
        chosen = slice(half)
    elif torch.equal(sin[0::2], sin[1::2]):
        chosen = slice(0, None, 2)
    return protocol.from_cos_sin(cos[chosen].tolist(), sin[chosen].tolist())
