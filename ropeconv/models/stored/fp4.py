"""Fp4Weight: numbers of 4 bits (E2M1), two to a byte, with a scale for each 16 or 32 of a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource
from ...formats.safetensors import Tensor
from .form import DOWNLOAD_AGAIN, StoredTensors, StoredWeight
from .numbers import E2M1, pairs

BYTES = pairs(E2M1)


@dataclass(frozen=True)
class Fp4Weight(StoredWeight):
    """w = e2m1 * (scale * factor)."""

    factor: str = ""
    """The name of a scale for the whole tensor, [] or [1]; empty without."""

    divides: bool = False
    """Whether the scales are divided by that factor, as in compressed-tensors."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        packed, scale_name, *_ = self.uses
        columns = self.shape[-1]
        width = stored.source.tensors[scale_name].shape[-1]
        scale = stored.floats(stored.numbers(scale_name, first * width, end * width), scale_name)
        if self.factor:
            factor = stored.whole(self.factor)
            scale = scale / factor if self.divides else scale * factor
        codes = stored.numbers(packed, first * columns // 2, end * columns // 2)
        numbers: NDArray[np.float32] = BYTES[codes].reshape(end - first, width, -1)
        numbers *= scale.reshape(end - first, width, 1)
        return numbers.reshape(end - first, columns)


def fp4_weight(
    name: str, packed: Tensor, scale: Tensor, factor: Tensor | None = None, divides: bool = False
) -> Fp4Weight:
    """Return a weight in floats of 4 bits, from the tensors in which a checkpoint stores it.

    Args:
        name: The name of the weight.
        packed: Its numbers, [..., columns / 2].
        scale: Its scales, [..., columns / 16] or [..., columns / 32].
        factor: A scale for the whole tensor.
        divides: Whether the scales are divided by it.

    Raises:
        BadSource: The shapes do not fit together.
    """
    # a byte has two numbers, so a scale of 16 numbers is that of 8 bytes, and one of 32 that of 16
    *leading, row_bytes = packed.shape
    has_whole_blocks = row_bytes % 8 == 0
    scales_fit = scale.shape in ((*leading, row_bytes // 8), (*leading, row_bytes // 16))
    factor_fits = factor is None or factor.shape in ((), (1,))
    if not has_whole_blocks or not scales_fit or not factor_fits:
        raise BadSource(
            f"{packed.name} {list(packed.shape)} and {scale.name} {list(scale.shape)} do not fit"
            f" together; {DOWNLOAD_AGAIN}"
        )

    uses = [packed.name, scale.name]
    factor_name = ""
    if factor is not None:
        factor_name = factor.name
        uses.append(factor_name)
    shape = (*leading, 2 * row_bytes)
    return Fp4Weight(name, shape, tuple(uses), factor_name, divides)
