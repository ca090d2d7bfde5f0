"""Finds where in a model numbers stop being finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .backbone import backbone_of, logits, read


def first_not_finite(model: Any, ids: Sequence[int], chunk: int) -> str:
    """The name of the module whose output is the first with an infinity or NaN in it; empty where all are finite.

    model: of transformers. ids: that it reads, from position 0 on. chunk: tokens at a time.
    """
    found: list[str] = []

    def watch(name: str) -> Any:
        def seen(module: Any, args: Any, output: Any) -> None:
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


def _tensors(output: Any) -> Iterator[Any]:
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
