"""Fp4Weight: numbers of 4 bits (E2M1), two to a byte, with a scale for each 16 or 32 of a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource
from ...formats.safetensors import Tensor
from .form import AGAIN, StoredTensors, StoredWeight
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
    """Return a weight of that name.

    Args:
        name: The name.
        packed: Its numbers, [..., columns / 2].
        scale: Its scales, [..., columns / 16] or [..., columns / 32].
        factor: A scale for the whole tensor.
        divides: Whether the scales are divided by it.

    Raises:
        BadSource: The shapes do not fit together.
    """
    *leading, width = packed.shape
    fits = scale.shape[:-1] == tuple(leading) and scale.shape[-1:] in (
        (width // 8,),
        (width // 16,),
    )
    if factor is not None and factor.shape not in ((), (1,)):
        fits = False
    if not fits or width % 8:
        raise BadSource(
            f"{packed.name} {list(packed.shape)} and {scale.name} {list(scale.shape)} do not fit"
            f" together; {AGAIN}"
        )
    uses = [packed.name, scale.name]
    if factor is not None:
        uses.append(factor.name)
    shape = (*leading, 2 * width)
    return Fp4Weight(name, shape, tuple(uses), factor.name if factor else "", divides)
