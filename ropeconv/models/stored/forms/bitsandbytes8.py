"""bitsandbytes in 8 bits: whole numbers, of which 127 is the largest number of a row.

w[i, j] = q[i, j] * SCB[i] / 127 (bitsandbytes, `int8_vectorwise_dequant`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import BadSource
from ..form import DOWNLOAD_AGAIN, RowScales, StoredForm, StoredTensors, StoredWeight, register

OF_127 = np.float32(7.874015718698502e-3)
"""1 / 127, with the digits of bitsandbytes."""


@dataclass(frozen=True)
class Bits8Weight(StoredWeight):
    """A layer in LLM.int8()."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        numbers = stored.rows(self.name, first, end).astype(np.float32)
        numbers *= stored.whole(self.uses[1])[first:end, None]
        numbers *= OF_127
        return numbers

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        return RowScales(self.uses[1], ((first, end),))


@register
class Bits8(StoredForm):
    """Layers with `SCB` beside `weight`."""

    title = "8 bits of bitsandbytes"
    methods = ("bitsandbytes",)
    unused = (".weight_format",)

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        for tensor in list(stored.remaining.values()):
            if tensor.dtype != "I8" or not tensor.name.endswith(".weight"):
                continue
            scale = stored.tensor(f"{tensor.name.removesuffix('weight')}SCB", tensor.name)
            if len(tensor.shape) != 2 or scale.shape != (tensor.shape[0],):
                raise BadSource(f"{scale.name} does not fit {tensor.name}; {DOWNLOAD_AGAIN}")
            yield Bits8Weight(tensor.name, tensor.shape, (tensor.name, scale.name))
