"""The indexers of sparse attention in a loaded model, which choose the keys that a query sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]
ALL = 1 << 31  # more keys than any cache holds


def indexers(model: Any) -> list[Any]:
    """The indexers of a model: modules with the number of keys to choose, `index_topk`."""
    return [module for module in model.modules() if isinstance(getattr(module, "index_topk", None), int)]


def compresses(model: Any) -> bool:
    """Whether attention compresses runs of keys into one, by their index and not by their position (DeepSeek V4).

    A sequence with gaps in its positions is then another one in chunks.
    """
    return any(hasattr(module, "compress_rate") for module in model.modules())


def choose_all_keys(model: Any) -> Undo:
    """Makes every indexer choose all keys, and returns a function that undoes it.

    A choice is discrete: two right results whose scores differ by rounding may see other keys, and then differ by much.
    """
    old = [(module, module.index_topk) for module in indexers(model)]
    for module, _ in old:
        module.index_topk = ALL

    def undo() -> None:
        for module, count in old:
            module.index_topk = count

    return undo
