"""RopeSetting: the RoPE dictionary of the extended layers and the lengths that are written with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RopeSetting:
    """One RoPE setting, ready to be put into a config.

    rope: the dictionary, with `rope_type` and without `rope_theta`. theta: the base, for `rope_theta`. context: in
    tokens, for max_position_embeddings. top_original: original_max_position_embeddings at the top level, None where it
    is not needed. notes: sentences for the user.
    """

    rope: dict[str, Any]
    theta: float
    context: int
    top_original: int | None = None
    notes: tuple[str, ...] = field(default=())
