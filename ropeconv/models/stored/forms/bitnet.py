"""BitNet: the numbers -1, 0 and 1 in two bits, divided by one scale.

A layer [rows, columns] has bytes [rows / 4, columns]. A byte has the numbers of four rows that are
rows / 4 apart, the first in its lowest bits, each plus one (transformers, integrations/bitnet.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import BadSource
from ..form import DOWNLOAD_AGAIN, StoredForm, StoredTensors, StoredWeight, register


@dataclass(frozen=True)
class BitnetWeight(StoredWeight):
    """A layer of BitNet."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        """Return the rows first .. end - 1 in float32, [rows, columns].

        BitNet stores the numbers -1, 0 and 1 in two bits each, and one scale by which all are
        divided.
        """
        _, scale_name = self.uses
        rows, columns = self.shape
        numbers = np.empty((end - first, columns), np.float32)

        # A byte has one number of each quarter of the rows, that of the first quarter in its lowest
        # two bits. So the rows are read from one quarter after the other.
        rows_in_quarter = rows // 4
        row = first
        while row < end:
            quarter, byte_row = divmod(row, rows_in_quarter)
            count = min(end - row, rows_in_quarter - byte_row)
            packed = stored.rows(self.name, byte_row, byte_row + count)
            codes = (packed >> (2 * quarter)) & 3
            numbers[row - first : row - first + count] = codes
            row += count

        numbers -= 1  # a code is the number plus one
        numbers /= stored.whole(scale_name)
        return numbers


@register
class Bitnet(StoredForm):
    """Layers of bytes with `weight_scale`."""

    title = "BitNet"
    methods = ("bitnet",)

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        for tensor in list(stored.remaining.values()):
            if tensor.dtype != "U8" or not tensor.name.endswith(".weight"):
                continue
            scale = stored.tensor(f"{tensor.name}_scale", tensor.name)
            if len(tensor.shape) != 2 or scale.shape not in ((), (1,)):
                raise BadSource(f"{scale.name} does not fit {tensor.name}; {DOWNLOAD_AGAIN}")
            rows, columns = tensor.shape
            uses = (tensor.name, scale.name)
            yield BitnetWeight(tensor.name, (4 * rows, columns), uses)
