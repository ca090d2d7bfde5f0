"""Whole numbers packed into words, as compressed-tensors stores them (pack-quantized).

A layer [rows, columns] has
    weight_packed     [rows, columns * bits / 32]: numbers plus 2^(bits - 1), packed along a row
    weight_scale      [rows, groups], [rows, 1] or [1]
    weight_zero_point [rows * bits / 32, groups]: packed along the rows; absent if symmetric
    weight_g_idx      [columns]: the group of each column; absent without activation order
    weight_shape      [2]: rows and columns
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import BadSource
from ....formats.safetensors import Tensor
from ..form import (
    DOWNLOAD_AGAIN,
    FROM_FLOATS,
    RowScales,
    StoredForm,
    StoredTensors,
    StoredWeight,
    register,
)
from ..numbers import unpack
from ..scaled import weight_groups


@dataclass(frozen=True)
class PackedWeight(StoredWeight):
    """A layer in pack-quantized."""

    bits: int
    """Bits of a number."""

    zeros_name: str = ""
    """The name of its tensor of zero points; empty where they are all 0."""

    group_index_name: str = ""
    """The name of its tensor with the group of each column; empty where groups are in order."""

    shape_name: str = ""
    """The name of the tensor that states its shape; empty without."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        """Return the rows first .. end - 1 in float32, [rows, columns].

        compressed-tensors packs small whole numbers into words of 32 bits. A weight is
        (number - offset) * scale, and groups of columns share an offset and a scale in each row.
        """
        packed, scale_name, *_ = self.uses  # names of tensors; the optional ones have fields
        rows, columns = self.shape
        count = end - first
        self._check_shape(stored)

        # [count, columns] numbers, and [count, groups] scales and offsets; a group is a set of
        # columns
        words = stored.rows(packed, first, end)
        numbers = self._unpacked_rows(words, columns).astype(np.int32)
        scale = self._scales_by_row(stored.whole(scale_name), rows, first, end)
        groups = scale.shape[1]
        offset: NDArray[Any]
        if self.zeros_name:
            offset = self._zeros(stored, first, end)
        else:  # numbers are stored plus 2^(bits - 1)
            offset = np.full_like(scale, 1 << (self.bits - 1), dtype=np.int32)

        # weight = (number - offset) * scale; with g_idx, each column may be of any group
        weights: NDArray[np.float32]
        if self.group_index_name:
            group_of_column = stored.whole_numbers(self.group_index_name)
            if group_of_column.max() >= groups:
                raise BadSource(
                    f"{self.group_index_name} names a group that has no scale; {DOWNLOAD_AGAIN}"
                )
            weights = (numbers - offset[:, group_of_column]).astype(np.float32)
            return weights * scale[:, group_of_column]

        # without g_idx, the columns of a group are neighbours: [count, groups, columns of a group]
        by_group = numbers.reshape(count, groups, -1)
        weights = (by_group - offset[:, :, np.newaxis]).astype(np.float32)
        weights *= scale[:, :, np.newaxis]
        return weights.reshape(count, columns)

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        name = self.uses[1]
        shape = stored.source.tensors[name].shape
        if len(shape) < 2:  # one for the whole matrix
            return None
        return RowScales(name, ((first * shape[1], end * shape[1]),))

    def _unpacked_rows(self, words: NDArray[np.uint32], columns: int) -> NDArray[Any]:
        """Numbers [rows, columns] of words [rows, words]."""
        if self.bits == 8:
            return words.view(np.uint8)[:, :columns]
        if self.bits == 4:
            halves = words.view(np.uint8)
            both = np.stack([halves & 15, halves >> 4], axis=2)
            return both.reshape(len(words), -1)[:, :columns]
        return unpack(np.ascontiguousarray(words.T), self.bits, columns).T

    def _scales_by_row(
        self, scales: NDArray[np.float32], rows: int, first: int, end: int
    ) -> NDArray[np.float32]:
        """The scales of the rows first .. end - 1, [rows, groups], from those of a whole weight."""
        if scales.size == 1:
            return np.broadcast_to(scales.reshape(1, 1), (end - first, 1))
        return scales.reshape(rows, -1)[first:end]

    def _zeros(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.int32]:
        """The numbers to subtract from those of some rows, [rows, groups]."""
        tensor = stored.source.tensors[self.zeros_name]
        if tensor.dtype == "I8":  # not packed
            return stored.rows(self.zeros_name, first, end).astype(np.int32) + (
                1 << (self.bits - 1)
            )
        # from a word in which a number begins
        start = first // 32 * 32
        words = stored.rows(self.zeros_name, start * self.bits // 32, -(-end * self.bits // 32))
        return unpack(words, self.bits, end - start)[first - start :].astype(np.int32)

    def _check_shape(self, stored: StoredTensors) -> None:
        """Raise BadSource where the layer states another shape than its scales give."""
        if self.shape_name:
            stated = tuple(stored.whole_numbers(self.shape_name).tolist())
            if stated != self.shape:
                raise BadSource(
                    f"{self.shape_name} states {list(stated)}, and its tensors are of"
                    f" {list(self.shape)}; {DOWNLOAD_AGAIN}"
                )


@register
class Packed(StoredForm):
    """Layers with weight_packed in words and weight_scale."""

    title = "packed INT"
    methods = ("compressed-tensors",)
    unused = (".input_scale", ".input_zero_point", ".input_global_scale", ".k_scale", ".v_scale")

    def find(self, stored: StoredTensors) -> Iterator[StoredWeight]:
        for tensor in list(stored.remaining.values()):
            if tensor.name.endswith("weight_packed") and tensor.dtype == "I32":
                yield _weight(stored, tensor.name.removesuffix("_packed"))


def _weight(stored: StoredTensors, name: str) -> PackedWeight:
    """Return a weight that compressed-tensors stores in packed words, after checking its tensors.

    The tensor NAME_packed has the numbers, and NAME_scale their scales. NAME_zero_point, NAME_g_idx
    (the group of each column) and NAME_shape are there only with some settings.

    Raises:
        BadSource: Its tensors do not fit together.
    """
    packed = stored.tensor(f"{name}_packed", of=name)
    scale = stored.tensor(f"{name}_scale", of=name)
    # a word of 32 bits has 8 numbers of 4 bits, or 4 of 8 bits: the config says which
    bits, columns = _bits_and_columns(stored, packed, scale)
    rows = packed.shape[0]

    # a name is empty for a tensor that the layer does not have
    tensors = stored.source.tensors
    zeros_name = f"{name}_zero_point" if f"{name}_zero_point" in tensors else ""
    group_index_name = f"{name}_g_idx" if f"{name}_g_idx" in tensors else ""
    shape_name = f"{name}_shape" if f"{name}_shape" in tensors else ""
    uses = [packed.name, scale.name]
    for further_name in (zeros_name, group_index_name, shape_name):
        if further_name:
            uses.append(further_name)

    if zeros_name:
        # one zero point for each scale, packed along the rows into words of 32 bits, or as bytes
        zeros = tensors[zeros_name]
        zeros_are_bytes = zeros.dtype == "I8"
        words_of_rows = -(-rows * bits // 32)  # rounded up
        zeros_in_column = rows if zeros_are_bytes else words_of_rows
        if zeros.shape != (zeros_in_column, scale.shape[-1]):
            raise BadSource(f"{zeros.name} has the shape {list(zeros.shape)}; {DOWNLOAD_AGAIN}")

    return PackedWeight(
        name=name,
        shape=(rows, columns),
        uses=tuple(uses),
        bits=bits,
        zeros_name=zeros_name,
        group_index_name=group_index_name,
        shape_name=shape_name,
    )


def _bits_and_columns(stored: StoredTensors, packed: Tensor, scale: Tensor) -> tuple[int, int]:
    """Return the bits of each number of a weight, and its columns: (4, 4096), say.

    `config_groups` in the config has the bits for several kinds of layers. The shapes of the
    tensors tell of which kind this layer is.

    Raises:
        BadSource: It is of none of them, or could be of two that differ in bits or columns.
    """
    possible = set()  # as (4, 4096)
    if len(packed.shape) == 2:
        for settings in weight_groups(stored.settings):
            bits_and_columns = _bits_and_columns_in_group(settings, packed.shape, scale.shape)
            if bits_and_columns is not None:
                possible.add(bits_and_columns)
    if len(possible) != 1:  # also two are refused, since one of them would be a guess
        raise BadSource(
            f"{packed.name} {list(packed.shape)} with scales {list(scale.shape)} is of none of the"
            f" config_groups in config.json; {FROM_FLOATS}"
        )
    return possible.pop()


def _bits_and_columns_in_group(
    settings: dict[str, Any], packed: tuple[int, ...], scale: tuple[int, ...]
) -> tuple[int, int] | None:
    """Return the bits of a number and the columns of a weight, such as (4, 4096).

    The numbers of a row are packed into words of 32 bits, so the shape of the words does not say
    how many columns there are. The settings of a layer in the config of compressed-tensors do: 512
    words of 4 bits are 4096 columns, which fit 32 groups of 128. The result is None if the shapes
    do not fit the settings, since these are then the settings of other layers.

    Args:
        settings: The "weights" of an entry of `config_groups`, e.g. {"num_bits": 4,
            "strategy": "group", "group_size": 128}.
        packed: The shape of weight_packed, [rows, words].
        scale: The shape of weight_scale: [1], [rows, 1] or [rows, groups].
    """
    bits: Any = settings.get("num_bits")
    has_bits = type(bits) is int and 1 <= bits <= 8
    if not has_bits or settings.get("type", "int") != "int":
        return None

    # 1. the columns: 32 scales in a row for groups of 128 columns are 4096 columns; without groups,
    # the words of a row are full
    rows, words = packed
    has_scale_by_row = len(scale) == 2
    if settings.get("strategy") == "group":
        group_size: Any = settings.get("group_size")
        if type(group_size) is not int or not has_scale_by_row:
            return None
        _, groups = scale
        columns = groups * group_size
    else:
        columns = words * 32 // bits

    # 2. The words must be those of the columns. Numbers follow each other without gaps, and the
    # last word of a row may have room left.
    needed_words = -(-columns * bits // 32)  # rounded up
    if words != needed_words:
        return None

    # 3. the scales: one for each row ([rows, 1]) or for each group of a row ([rows, groups])
    if has_scale_by_row:
        scale_rows, groups = scale
        if scale_rows != rows:
            return None
        if groups != 1 and columns % groups:  # not all groups have as many columns
            return None
        return bits, columns
    # or one scale for the whole layer
    if scale != (1,):
        return None
    return bits, columns
