"""Reorders the rows of queries and keys between the two layouts of RoPE, for tensors of any type.

Blocks of quantised types lie within rows, so whole rows move and nothing is requantised.
"""

from __future__ import annotations

from .edit import Change
from .header import TensorInfo


def interleave(info: TensorInfo, head_dim: int) -> Change:
    """The change from pairs (i, i + d/2) to (2i, 2i + 1). info: of the weight or bias. head_dim: its rows per head."""
    row = _row(info)
    return Change(head_dim * row, lambda head: _swapped(head, 2, row), head_dim)


def deinterleave(info: TensorInfo, head_dim: int) -> Change:
    """The change from pairs (2i, 2i + 1) to (i, i + d/2), the inverse of `interleave`. Parameters as there."""
    row = _row(info)
    return Change(head_dim * row, lambda head: _swapped(head, head_dim // 2, row))


def _row(info: TensorInfo) -> int:
    """Bytes of the weights, or of the bias, that give one dimension."""
    return info.row_size if len(info.shape) > 1 else info.size // info.shape[0]


def _swapped(head: bytes, outer: int, row: int) -> bytes:
    import numpy as np

    rows = np.frombuffer(head, np.uint8).reshape(outer, -1, row)
    return rows.swapaxes(0, 1).tobytes()
