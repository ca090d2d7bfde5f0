"""bitsandbytes in 4 bits: codes of NF4 or FP4, and the largest number of each block.

A layer NAME.weight has bytes with two codes each, the first in the upper half, through all rows.
Beside it are `quant_map`, the number of each of the 16 codes, and `absmax`, one for each block of
64 numbers. With double quantisation (`bnb_4bit_use_double_quant`), absmax has codes too:
nested_quant_map[absmax] * nested_absmax + offset, in blocks of 256. A text of JSON has the rest,
`quant_state.bitsandbytes__nf4` (bitsandbytes, `QuantState.as_dict`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import BadSource
from ....formats.jsontext import parse
from ....rope.errors import shown
from ..form import AGAIN, RowScales, StoredForm, StoredTensors, StoredWeight, register
from ..numbers import pairs

STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")


@dataclass(frozen=True)
class Nested:
    """How the largest numbers of blocks are quantised themselves."""

    block: int
    """How many of them share a number."""

    offset: float
    """The number that is added to each."""


@dataclass(frozen=True)
class Bits4Weight(StoredWeight):
    """A layer in NF4 or FP4."""

    block: int
    """How many numbers share their largest one."""

    nested: Nested | None = None
    """None where largest numbers are floats."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        # rows follow each other without gaps, and a block or a byte may have two of them
        columns = self.shape[-1]
        start = first * columns
        stop = end * columns
        first_block = start // self.block
        end_block = -(-stop // self.block)
        first_byte = start // 2
        codes = np.frombuffer(stored.data(self.name, first_byte, -(-stop // 2)), np.uint8)
        numbers = pairs(stored.whole(f"{self.name}.quant_map"), high_first=True)[codes].reshape(-1)
        numbers = numbers[start - 2 * first_byte :][: stop - start]

        largest = self._largest(stored, first_block, end_block)
        of_each = np.repeat(largest, self.block)
        numbers = numbers * of_each[start - first_block * self.block :][: stop - start]
        return numbers.reshape(-1, columns)

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        columns = self.shape[-1]
        if self.nested is not None or columns % self.block:
            return None
        blocks = columns // self.block
        return RowScales(f"{self.name}.absmax", ((first * blocks, end * blocks),))

    def _largest(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        """The largest numbers of the blocks first .. end - 1."""
        name = f"{self.name}.absmax"
        codes = stored.numbers(name, first, end)
        if self.nested is None:
            return stored.floats(codes, name)
        map_of_codes = stored.whole(f"{self.name}.nested_quant_map")
        block = np.arange(first, end) // self.nested.block
        scale = stored.whole(f"{self.name}.nested_absmax")[block]
        largest: NDArray[np.float32] = map_of_codes[codes] * scale
        return largest + np.float32(self.nested.offset)


@register
class Bits4(StoredForm):
    """Layers with a `quant_state`."""

    title = "4 bits of bitsandbytes"
    methods = ("bitsandbytes",)

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        for name in list(stored.left):
            for end in STATES:
                if name.endswith(end):
                    yield _weight(stored, name.removesuffix(end), name)


def _weight(stored: StoredTensors, name: str, state_name: str) -> Bits4Weight:
    """The weight of that name, by its description.

    Raises:
        BadSource: The description is damaged, or does not fit the tensors.
    """
    state = parse(stored.description(state_name), state_name)
    shape: Any = state.get("shape")
    block: Any = state.get("blocksize")
    is_shape = isinstance(shape, list) and len(shape) > 1
    is_shape = is_shape and all(type(side) is int and side > 0 for side in shape)
    if not is_shape or type(block) is not int or block < 1:
        raise BadSource(
            f"{state_name} has the shape {shown(shape)} and the blocksize {shown(block)}; {AGAIN}"
        )
    uses = [name, state_name, f"{name}.quant_map", f"{name}.absmax"]
    nested = _nested(state, stored, name)
    if nested is not None:
        uses += [f"{name}.nested_absmax", f"{name}.nested_quant_map"]

    # the numbers of each tensor, by the shape and the sizes of the blocks
    blocks = -(-prod(shape) // block)
    packed = stored.tensor(name, state_name)
    expected = {f"{name}.quant_map": 16, f"{name}.absmax": blocks}
    if nested is not None:
        expected[f"{name}.nested_quant_map"] = 256
        expected[f"{name}.nested_absmax"] = -(-blocks // nested.block)
    fits = -(-prod(shape) // 2) <= packed.stop - packed.start
    for each, count in expected.items():
        tensor = stored.tensor(each, name)
        is_codes = nested is not None and each.endswith("absmax") and "nested" not in each
        fits = fits and prod(tensor.shape) == count and is_codes == (tensor.dtype == "U8")
    if not fits:
        raise BadSource(f"the tensors of {name} do not fit its {state_name}; {AGAIN}")
    return Bits4Weight(name, tuple(shape), tuple(uses), block, nested)


def _nested(state: dict[str, Any], stored: StoredTensors, name: str) -> Nested | None:
    """How absmax is quantised by the description; None where it is not.

    Raises:
        BadSource: The description is damaged.
    """
    if f"{name}.nested_absmax" not in stored.source.tensors:
        return None
    block = state.get("nested_blocksize")
    offset = state.get("nested_offset")
    if type(block) is not int or block < 1 or not isinstance(offset, int | float):
        raise BadSource(
            f"{name} has a nested_blocksize of {shown(block)} and a nested_offset of"
            f" {shown(offset)}; {AGAIN}"
        )
    return Nested(block, float(offset))
