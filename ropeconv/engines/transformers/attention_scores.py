"""Multiplies the attention scores of a loaded model by one factor, through the softmax scale of its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]


def attention_modules(model: Any) -> list[Any]:
    """The attention modules of the text part of a model that have a softmax scale of their own, `scaling`."""
    return [
        module
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__ and "vision" not in name and "visual" not in name
        if isinstance(getattr(module, "scaling", None), float)
    ]


def scale_scores(model: Any, factor: float) -> Undo:
    """Multiplies all attention scores by `factor`, and returns a function that undoes it.

    The factor commutes with the rotation of queries and keys, so a model computes its RoPE as before.
    """
    old = [(module, module.scaling) for module in attention_modules(model)]
    for module, scaling in old:
        module.scaling = scaling * factor

    def undo() -> None:
        for module, scaling in old:
            module.scaling = scaling

    return undo
