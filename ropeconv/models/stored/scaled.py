"""ScaledWeight: numbers of eight bits times scales that rows, blocks or the whole matrix share."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource
from ...formats.safetensors import Tensor
from ...rope.errors import shown
from .form import RowScales, StoredTensors, StoredWeight
from .numbers import EIGHT_BITS

SCALES = ("_scale_inv", "_scale")
"""Ends of the name of a scale, after the name of its weight. Both are multiplied: "inv" says that
it is the inverse of the one by which the weight was divided.
"""


@dataclass(frozen=True)
class ScaledWeight(StoredWeight):
    """w[i, j] = (q[i, j] - z[i, j]) * s[i, j], of numbers of eight bits."""

    scale: str
    """The name of its tensor of scales."""

    block: tuple[int, int]
    """The rows and columns of a matrix that share a scale."""

    zeros: str = ""
    """The name of its tensor of zero points, which has the shape of the scales; empty without."""

    def rows(self, stored: StoredTensors, first: int, end: int) -> NDArray[np.float32]:
        """Return the rows first .. end - 1 in float32, [rows, columns].

        A weight is its stored number, in FP8 or INT8, times the scale of its block.
        """
        name = self.uses[0]  # the tensor of the numbers
        columns = self.shape[-1]
        stored_bytes = stored.numbers(name, first * columns, end * columns)
        dtype = stored.source.tensors[name].dtype
        numbers: NDArray[np.float32]
        if dtype in EIGHT_BITS:  # FP8, with a table of the 256 numbers that a byte can be
            numbers = EIGHT_BITS[dtype][stored_bytes].reshape(-1, columns)
        else:  # INT8
            numbers = stored_bytes.astype(np.float32).reshape(-1, columns)

        # Weight = (number - zero point) * scale. A block of the weight shares both, so they are
        # repeated for every number of these rows.
        row_numbers = np.arange(first, end)
        if self.zeros:  # the name of the tensor of zero points; empty without one
            zeros = stored.numbers(self.zeros).astype(np.float32)
            numbers -= self._expand_to_rows(zeros, row_numbers)
        scales = stored.whole(self.scale)  # by the name of their tensor
        numbers *= self._expand_to_rows(scales, row_numbers)
        return numbers

    def scales_of_rows(self, stored: StoredTensors, first: int, end: int) -> RowScales | None:
        """Return the scales that only the rows first .. end - 1 have; None if others share them.

        In blocks of 128 rows and 128 columns of a matrix with 512 columns, the rows 128 .. 255 have
        the scales 4 .. 7. The rows 128 .. 191 have none of their own.
        """
        if len(self.shape) != 2:
            return None
        # one scale for a whole matrix is not its own: runtimes fuse queries, keys and values, and
        # then take the largest of their scales (vLLM, requantize_with_max_scale)
        if self.block == self.shape:
            return None

        # a block of which these rows are only a part has other rows too
        height, width = self.block
        rows, columns = self.shape
        begins_with_block = first % height == 0
        ends_with_block = end % height == 0 or end == rows
        if not begins_with_block or not ends_with_block:
            return None

        # the scales are in the order of the blocks: all blocks of the first rows come first
        blocks_across = -(-columns // width)  # rounded up
        start = first // height * blocks_across
        stop = -(-end // height) * blocks_across
        return RowScales(self.scale, ((start, stop),))

    def _expand_to_rows(
        self, shared: NDArray[np.float32], rows: NDArray[Any]
    ) -> NDArray[np.float32]:
        """Return the scales (or the zero points) of some rows, from those of the blocks.

        In blocks of 128 rows and 128 columns, the weight in row 200 and column 5 has the scale of
        the block (1, 0).

        Args:
            shared: The scale of each block, flat: all blocks of the first rows come first.
            rows: The rows, counted through all matrices of a tensor with several.

        Returns:
            float32 [rows, columns]; or an array that numpy broadcasts to it, where all numbers of a
            row or of the tensor have the same.
        """
        # a row of this table has the scales of one row of blocks
        height, width = self.block
        columns = self.shape[-1]
        blocks_across = -(-columns // width)  # rounded up
        table = shared.reshape(-1, blocks_across)

        if len(table) == 1:  # one row of blocks has all rows of all matrices
            of_rows = table
        else:
            matrix_rows = self.shape[-2] if len(self.shape) > 1 else 1
            blocks_down = -(-matrix_rows // height)
            matrix, row = np.divmod(rows, matrix_rows)
            of_rows = table[matrix * blocks_down + row // height]

        if blocks_across == 1:
            return of_rows
        # the last block may be cut off by the edge of the matrix
        return np.repeat(of_rows, width, axis=1)[:, :columns]


def scaled_weight(
    tensor: Tensor, scale: Tensor, size: tuple[int, int], zeros: str = ""
) -> ScaledWeight:
    """Return a quantised weight of which blocks share a scale, as FP8 and INT8 are stored.

    Args:
        tensor: The numbers, [rows, columns] or [matrices, rows, columns], as for experts.
        scale: The scales.
        size: The rows and columns of a block, where there are blocks.
        zeros: The name of the tensor of zero points.

    Raises:
        BadSource: The shapes do not fit together.
    """
    uses = [tensor.name, scale.name]
    if zeros:
        uses.append(zeros)
    block = _block(tensor, scale, size)
    return ScaledWeight(tensor.name, tensor.shape, tuple(uses), scale.name, block, zeros)


def _block(tensor: Tensor, scale: Tensor, size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns of a block, whose numbers share a scale.

    A matrix [256, 512] with scales [2, 4] has blocks of (128, 128), and with [256, 1] of (1, 512).

    Args:
        tensor: The quantised numbers.
        scale: Their scales.
        size: The block size that the config states, or its default.

    Raises:
        BadSource: The shapes do not fit together.
    """
    # the shape of each matrix, and how many there are; a vector is one row
    rows = 1
    columns = prod(tensor.shape)
    if len(tensor.shape) > 1:
        rows, columns = tensor.shape[-2:]
    matrices = prod(tensor.shape[:-2])

    # one scale for the whole tensor, or for each of its matrices
    scales = prod(scale.shape)
    if scales in (1, matrices):
        return rows, columns

    # one for each row, as [rows] or [rows, 1]
    is_column = len(scale.shape) < 2 or scale.shape[-1] == 1
    if scales == matrices * rows and is_column:
        return 1, columns

    # one for each block, of which the last ones may be cut off by the edge of the matrix
    height, width = size
    blocks_down = -(-rows // height)  # rounded up
    blocks_across = -(-columns // width)
    if scale.shape == (*tensor.shape[:-2], blocks_down, blocks_across):
        return height, width

    # one for each group of neighbours in a row, as in MXFP8
    groups = scale.shape[-1]
    if scale.shape[:-1] == tensor.shape[:-1] and columns % groups == 0:
        return 1, columns // groups
    raise BadSource(
        f"{scale.name} has the shape {list(scale.shape)}, which does not fit"
        f" {list(tensor.shape)} in blocks of {height} x {width}; dequantise the checkpoint with"
        " its own tools"
    )


def block_size(settings: dict[str, Any]) -> tuple[int, int]:
    """Return the size of a block by `quantization_config`, or 128 x 128.

    Raises:
        BadSource: It is something else than two positive whole numbers.
    """
    size = settings.get("weight_block_size") or _compressed_block(settings)
    if size is None:
        return 128, 128
    is_pair = isinstance(size, list) and len(size) == 2
    if not is_pair or not all(type(side) is int and side > 0 for side in size):
        raise BadSource(
            f"config.json has a weight_block_size of {shown(size)}; write two positive whole"
            " numbers there, such as [128, 128]"
        )
    return size[0], size[1]


def _compressed_block(settings: dict[str, Any]) -> Any:
    """The size of a block by the config of compressed-tensors; None where it names none."""
    for weights in weight_groups(settings):
        if weights.get("block_structure"):
            return weights["block_structure"]
    return None


def weight_groups(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what compressed-tensors states on weights, for each of its `config_groups`."""
    groups = settings.get("config_groups")
    if not isinstance(groups, dict):
        return []
    stated = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            stated.append(weights)
    return stated
