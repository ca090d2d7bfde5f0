"""What an encoding hands over: the dictionary for the extended layers and the lengths beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RopeSetting:
    """One RoPE setting, ready to be put into a config.

    rope: the dictionary, with `rope_type` and without `rope_theta`. theta: the base beside it.
    context: max_position_embeddings. top_original: original_max_position_embeddings at the top level, if needed.
    """

    rope: dict[str, Any]
    theta: float
    context: int
    top_original: int | None = None
    notes: tuple[str, ...] = field(default=())
