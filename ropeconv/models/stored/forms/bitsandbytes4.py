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
from ..form import DOWNLOAD_AGAIN, RowScales, StoredForm, StoredTensors, StoredWeight, register
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
        """Return the rows first .. end - 1 in float32, [rows, columns].

        bitsandbytes stores a weight as a code of 4 bits, the index of one of 16 numbers between -1
        and 1 (quant_map). That number times the largest number of its block is the weight.
        """
        # The numbers of a layer are stored without gaps between its rows. So a byte (two numbers)
        # or a block may have the end of one row and the begin of the next. `start` and `stop` are
        # places in the whole layer.
        columns = self.shape[-1]
        start = first * columns
        stop = end * columns
        count = stop - start

        # 1. The bytes of these rows. A table has the two numbers of each of the 256 bytes; the
        # first number of a byte is in its high four bits.
        first_byte = start // 2
        end_byte = -(-stop // 2)  # rounded up
        packed = np.frombuffer(stored.data(self.name, first_byte, end_byte), np.uint8)
        two_numbers_by_byte = pairs(stored.whole(f"{self.name}.quant_map"), high_first=True)
        numbers = two_numbers_by_byte[packed].reshape(-1)
        # the first byte may begin with a number of the row before
        numbers_before = start - 2 * first_byte  # 0 or 1
        numbers = numbers[numbers_before : numbers_before + count]

        # 2. the largest number of each block, repeated for every number of the block
        first_block = start // self.block  # self.block is the size of a block
        end_block = -(-stop // self.block)
        largest_of_blocks = self._largest_of_blocks(stored, first_block, end_block)
        largest = np.repeat(largest_of_blocks, self.block)
        # the first block may begin with numbers of rows before
        numbers_before = start - first_block * self.block
        numbers = numbers * largest[numbers_before : numbers_before + count]
        return numbers.reshape(-1, columns)

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        columns = self.shape[-1]
        if self.nested is not None or columns % self.block:
            return None
        blocks = columns // self.block
        return RowScales(f"{self.name}.absmax", ((first * blocks, end * blocks),))

    def _largest_of_blocks(
        self, stored: StoredTensors, first: int, end: int
    ) -> NDArray[np.float32]:
        """The largest numbers of the blocks first .. end - 1, float32 [blocks]."""
        name = f"{self.name}.absmax"
        codes = stored.numbers(name, first, end)
        if self.nested is None:  # they are floats
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
        for name in list(stored.remaining):
            for end in STATES:
                if name.endswith(end):
                    yield _weight(stored, name.removesuffix(end), name)


def _weight(stored: StoredTensors, name: str, state_name: str) -> Bits4Weight:
    """Return a weight that bitsandbytes stores in 4 bits, after checking its tensors.

    Args:
        stored: The tensors of the checkpoint.
        name: The name of the weight, and of the tensor with its codes.
        state_name: The tensor that describes the weight in JSON: its shape and the size of its
            blocks, e.g. {"shape": [64, 32], "blocksize": 64}.

    Raises:
        BadSource: The description is damaged, or does not fit the tensors.
    """
    state = parse(stored.description(state_name), state_name)
    shape: Any = state.get("shape")
    block: Any = state.get("blocksize")
    is_shape = isinstance(shape, list) and len(shape) > 1
    is_shape = is_shape and all(type(side) is int and side > 0 for side in shape)
    is_block = type(block) is int and block >= 1
    if not is_shape or not is_block:
        raise BadSource(
            f"{state_name} has the shape {shown(shape)} and the blocksize {shown(block)};"
            f" {DOWNLOAD_AGAIN}"
        )

    # The names of all tensors of the weight (`uses`), and how many numbers some must have. absmax
    # has the largest number of each block, and nested_absmax those of blocks of absmax.
    count = prod(shape)
    blocks = -(-count // block)  # rounded up, as all divisions here
    expected_counts = {f"{name}.quant_map": 16, f"{name}.absmax": blocks}
    uses = [name, state_name, f"{name}.quant_map", f"{name}.absmax"]
    nested = _double_quantisation(state, stored, name)
    if nested is not None:
        expected_counts[f"{name}.nested_quant_map"] = 256
        expected_counts[f"{name}.nested_absmax"] = -(-blocks // nested.block)
        uses += [f"{name}.nested_absmax", f"{name}.nested_quant_map"]

    message = f"the tensors of {name} do not fit its {state_name}; {DOWNLOAD_AGAIN}"
    packed = stored.tensor(name, of=state_name)
    packed_bytes = -(-count // 2)  # two codes in each byte
    if packed.stop - packed.start < packed_bytes:
        raise BadSource(message)
    for tensor_name, expected in expected_counts.items():
        tensor = stored.tensor(tensor_name, of=name)
        if prod(tensor.shape) != expected:
            raise BadSource(message)
        # double quantisation stores absmax as codes of one byte; all other numbers are floats
        must_be_codes = nested is not None and tensor_name == f"{name}.absmax"
        are_codes = tensor.dtype == "U8"
        if are_codes != must_be_codes:
            raise BadSource(message)
    return Bits4Weight(name, tuple(shape), tuple(uses), block, nested)


def _double_quantisation(state: dict[str, Any], stored: StoredTensors, name: str) -> Nested | None:
    """Return the settings of double quantisation, e.g. Nested(block=256, offset=0.04).

    With it (QLoRA), the largest number of each block is not a float but a code of one byte. The
    result is None for a weight without it.

    Args:
        state: The description of the weight.
        stored: The tensors of the checkpoint.
        name: The name of the weight.

    Raises:
        BadSource: The description is damaged.
    """
    if f"{name}.nested_absmax" not in stored.source.tensors:
        return None
    block: Any = state.get("nested_blocksize")
    offset: Any = state.get("nested_offset")
    is_block = type(block) is int and block >= 1
    if not is_block or not isinstance(offset, int | float):
        raise BadSource(
            f"{name} has a nested_blocksize of {shown(block)} and a nested_offset of"
            f" {shown(offset)}; {DOWNLOAD_AGAIN}"
        )
    return Nested(block, float(offset))
