"""Fp8Checkpoint: a checkpoint with weights of eight bits and scales, presented in float32.

DeepSeek V3, MiniMax M2 and Kimi K2 are published so: each weight is a number of eight bits times a
scale that a block of 128 x 128 of them shares, w[i, j] = q[i, j] * s[i // 128, j // 128]. Others
have a scale for each row or for each tensor. Read `dequantised` first. Weights are multiplied when
they are read, row by row, so that memory does not depend on the size of the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSource
from ..formats import jsontext
from ..formats.disk import FileIdentity
from ..formats.files import open_regular
from ..formats.safetensors import INDEX, Tensor
from ..rope.errors import shown
from .folder import ConvertedShard, ConvertedSource, ConvertedTensor
from .schema import Config
from .source import Source, SourceFile, read_exactly

QUANTISATION = "quantization_config"
SCALES = ("_scale_inv", "_scale")
"""Ends of the name of a scale, after the name of its weight. Both are multiplied: "inv" says that
it is the inverse of the one by which the weight was divided.
"""
OF_ACTIVATIONS = (
    ".input_scale",
    ".activation_scale",
    ".output_scale",
    ".k_scale",
    ".v_scale",
)
"""Ends of the names of scales for activations and caches, which no weight has."""
PIECE = 1 << 22
"""Bytes of float32 that `blocks` makes at a time."""


def _decode_e4m3() -> NDArray[np.float32]:
    """The numbers of F8_E4M3: 1 sign, 4 bits of exponent over 7, 3 of mantissa, and no infinity.

    Source: Micikevicius et al. 2022, "FP8 formats for deep learning", table 1.
    """
    codes = np.arange(256)
    exponent = codes >> 3 & 15
    mantissa = codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    subnormal = mantissa / 8 * 2.0**-6
    numbers = np.where(exponent > 0, normal, subnormal)
    numbers[codes & 127 == 127] = np.nan
    return np.where(codes < 128, numbers, -numbers).astype(np.float32)


def _decode_e5m2() -> NDArray[np.float32]:
    """The numbers of F8_E5M2, which are the upper halves of numbers in float16."""
    halves = np.arange(256, dtype=np.uint16) << 8
    return halves.view(np.float16).astype(np.float32)


def _decode_e8m0() -> NDArray[np.float32]:
    """The numbers of F8_E8M0, powers of two for scales: 2^(code - 127), and 255 is NaN."""
    numbers = 2.0 ** (np.arange(256) - 127.0)
    numbers[255] = np.nan
    return numbers.astype(np.float32)


NUMBERS = {"F8_E4M3": _decode_e4m3(), "F8_E5M2": _decode_e5m2()}
"""The number of each byte of a weight, by its dtype in safetensors."""
POWERS = _decode_e8m0()


@dataclass(frozen=True)
class Scale:
    """The scales of a weight."""

    file: str
    tensor: Tensor
    """Its entry in the header of that file."""

    block: tuple[int, int]
    """The rows and columns of a matrix that share a scale."""


@dataclass(frozen=True)
class Fp8Tensor(ConvertedTensor):
    """A tensor of the checkpoint: a weight in float32, or one that is stored so already."""

    file: str
    stored: Tensor
    """Its entry in the header of the file."""

    scale: Scale | None = None
    """None for a tensor that is copied."""


def dequantised(source: Source) -> Source:
    """Return a checkpoint whose weights of eight bits are presented in float32.

    Args:
        source: Any checkpoint; one without such weights is returned unchanged.

    Raises:
        BadSource: If a weight has no scale, or one of an unknown shape.
    """
    if any(tensor.dtype in NUMBERS for tensor in source.tensors.values()):
        return Fp8Checkpoint(source)
    return source


class Fp8Checkpoint(ConvertedSource[Fp8Tensor]):
    """A checkpoint with weights of eight bits, presented in float32.

    Args:
        inner: The stored checkpoint.
    """

    def __init__(self, inner: Source) -> None:
        self.inner = inner
        self.reference = inner.reference
        self.name = inner.name
        self.kind = inner.kind
        self.commit = inner.commit
        self.treat_as = inner.treat_as
        self.as_draft = inner.as_draft
        self._last_scale: tuple[str, NDArray[np.float32]] = ("", np.empty(0, np.float32))

    @property
    def identity(self) -> str:
        return self.inner.identity

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return self.inner.identities(unread)

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def usual_dtype(self) -> str:
        """F16 where tensors beside the weights are stored so, else BF16, as in llama.cpp's own
        converter.
        """
        stored = [tensor.dtype for tensor in self.inner.tensors.values()]
        return "F16" if stored.count("F16") > stored.count("BF16") else "BF16"

    @cached_property
    def texts(self) -> dict[str, str]:
        config: Config = {
            key: value for key, value in self.inner.config().items() if key != QUANTISATION
        }
        return {"config.json": jsontext.dump(config), **self.index()}

    def text(self, name: str) -> str | None:
        return self.texts.get(name) or self.inner.text(name)

    def kept_files(self) -> list[SourceFile]:
        made = {*self.texts, *self.inner.weights(), INDEX}
        return [file for file in self.inner.files() if file.name not in made]

    def path(self, name: str) -> Path:
        return self.inner.path(name)

    def local(self, name: str) -> Path | None:
        return self.inner.local(name)

    @cached_property
    def shards(self) -> tuple[ConvertedShard[Fp8Tensor], ...]:
        """The files that are presented: weights in float32, and no scales, in stored order."""
        # a weight and its scale may be in different files
        file_by_tensor = {}
        for file, header in self.inner.headers.items():
            for name in header.tensors:
                file_by_tensor[name] = file

        shards = []
        for file, header in self.inner.headers.items():
            tensors = []
            for tensor in sorted(header.tensors.values(), key=lambda tensor: tensor.start):
                if not self._is_scale(tensor.name):
                    tensors.append(self._converted(tensor, file, file_by_tensor))
            shards.append(ConvertedShard(file, tuple(tensors)))
        return tuple(shards)

    def _is_scale(self, name: str) -> bool:
        """Whether a tensor is the scale of a weight of eight bits, or one of activations."""
        if name.endswith(OF_ACTIVATIONS):
            return True
        for end in SCALES:
            weight = self.inner.tensors.get(name.removesuffix(end))
            if name.endswith(end) and weight is not None and weight.dtype in NUMBERS:
                return True
        return False

    def _converted(self, tensor: Tensor, file: str, file_by_tensor: Mapping[str, str]) -> Fp8Tensor:
        """Return how a stored tensor is presented: in float32 by its scale, or unchanged.

        Raises:
            BadSource: A weight of eight bits has no scale, or one of an unknown shape.
        """
        if tensor.dtype not in NUMBERS:
            return Fp8Tensor(tensor.name, tensor.dtype, tensor.shape, file, tensor)
        for end in SCALES:
            stored_scale = self.inner.tensors.get(tensor.name + end)
            if stored_scale is not None:
                scale = Scale(
                    file=file_by_tensor[stored_scale.name],
                    tensor=stored_scale,
                    block=self._block(tensor, stored_scale),
                )
                return Fp8Tensor(tensor.name, "F32", tensor.shape, file, tensor, scale)
        raise BadSource(
            f"{tensor.name} has numbers of 8 bits ({tensor.dtype}) without a scale; download the"
            " checkpoint again, or dequantise it with its own tools"
        )

    def _block(self, tensor: Tensor, scale: Tensor) -> tuple[int, int]:
        """Return the rows and columns that share a scale, by the shapes of a weight and its scales.

        Args:
            tensor: The weight, [rows, columns] or [matrices, rows, columns], as for experts.
            scale: Its scales.

        Raises:
            BadSource: The shapes do not fit together.
        """
        if len(tensor.shape) > 1:
            rows, columns = tensor.shape[-2:]
        else:  # a vector is one row
            rows, columns = 1, prod(tensor.shape)
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
        height, width = self._block_size
        blocks_down = -(-rows // height)  # rounded up
        blocks_across = -(-columns // width)
        if scale.shape == (*tensor.shape[:-2], blocks_down, blocks_across):
            return height, width
        raise BadSource(
            f"{scale.name} has the shape {list(scale.shape)}, which does not fit"
            f" {list(tensor.shape)} in blocks of {height} x {width}; dequantise the checkpoint with"
            " its own tools"
        )

    @cached_property
    def _block_size(self) -> tuple[int, int]:
        """The size of a block by config.json, or 128 x 128.

        Raises:
            BadSource: It is something else than two positive whole numbers.
        """
        settings = self.inner.config().get(QUANTISATION)
        size = None
        if isinstance(settings, dict):
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

    def blocks(self, tensors: Sequence[Fp8Tensor]) -> Iterator[memoryview]:
        for tensor in tensors:
            size = (
                prod(tensor.shape) * 4 if tensor.scale else tensor.stored.stop - tensor.stored.start
            )
            for start in range(0, size, PIECE):
                yield memoryview(self.part(tensor, start, min(start + PIECE, size)))

    def part(self, tensor: Fp8Tensor, start: int, stop: int) -> bytes:
        """Return the bytes start .. stop - 1 of a presented tensor: of a weight, in float32."""
        place = self.inner.headers[tensor.file].data_start + tensor.stored.start
        if tensor.scale is None:  # presented unchanged
            return self._read(tensor.file, place + start, place + stop)

        # the rows in which these bytes are: a number has one byte in the file, and four in float32
        columns = tensor.shape[-1]
        row_bytes = 4 * columns
        first_row = start // row_bytes
        end_row = -(-stop // row_bytes)  # rounded up
        raw = self._read(tensor.file, place + first_row * columns, place + end_row * columns)

        # w[i, j] = q[i, j] * s[i, j]
        codes = np.frombuffer(raw, np.uint8)
        numbers = NUMBERS[tensor.stored.dtype][codes].reshape(-1, columns)
        numbers *= self._factors(tensor, tensor.scale, np.arange(first_row, end_row))
        offset = first_row * row_bytes
        return numbers.tobytes()[start - offset : stop - offset]

    def _factors(
        self, tensor: Fp8Tensor, scale: Scale, rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the scale of each number in some rows of a tensor.

        The number in row i and column j of a matrix has the scale of the block i // height,
        j // width.

        Args:
            tensor: The weight, [rows, columns] or [matrices, rows, columns].
            scale: Its scales.
            rows: The rows, counted through all matrices.

        Returns:
            float32 [rows, columns]; or an array that numpy broadcasts to it, where a row has one
            scale, or the whole tensor.
        """
        # a row of this table has the scales of one row of blocks
        height, width = scale.block
        columns = tensor.shape[-1]
        blocks_across = -(-columns // width)  # rounded up
        scales = self._scales_of(scale).reshape(-1, blocks_across)

        if len(scales) == 1:  # it holds for all rows of all matrices
            scales_of_rows = scales
        else:
            matrix_rows = tensor.shape[-2] if len(tensor.shape) > 1 else 1
            blocks_down = -(-matrix_rows // height)
            matrix, row = np.divmod(rows, matrix_rows)
            scales_of_rows = scales[matrix * blocks_down + row // height]

        if blocks_across == 1:
            return scales_of_rows
        # the last block may be cut off by the edge of the matrix
        return np.repeat(scales_of_rows, width, axis=1)[:, :columns]

    def _scales_of(self, scale: Scale) -> NDArray[np.float32]:
        """The numbers of a tensor of scales, which are kept until another one is needed."""
        name, numbers = self._last_scale
        if name != scale.tensor.name:
            numbers = self._read_scale(scale)
            self._last_scale = (scale.tensor.name, numbers)
        return numbers

    def _read_scale(self, scale: Scale) -> NDArray[np.float32]:
        """The numbers of a tensor of scales, in float32."""
        header = self.inner.headers[scale.file]
        start = header.data_start + scale.tensor.start
        raw = self._read(scale.file, start, header.data_start + scale.tensor.stop)
        dtype = scale.tensor.dtype
        if dtype == "F8_E8M0":
            return POWERS[np.frombuffer(raw, np.uint8)]
        if dtype == "BF16":
            return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        if dtype in ("F32", "F16"):
            return np.frombuffer(raw, "<f4" if dtype == "F32" else "<f2").astype(np.float32)
        raise BadSource(
            f"{scale.tensor.name} is {dtype}, and scales are F32, F16, BF16 or F8_E8M0; dequantise"
            " the checkpoint with its own tools"
        )

    def _read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes of a stored file, which is fetched as a whole: all of its rows are needed."""
        with open_regular(self.inner.path(name)) as file:
            return read_exactly(file, name, start, stop)

    def conversion_notes(self) -> tuple[str, ...]:
        return ("its weights of 8 bits are multiplied by their scales while they are read",)


def _compressed_block(settings: dict[str, Any]) -> Any:
    """The size of a block by the config of compressed-tensors; None where it names none."""
    groups = settings.get("config_groups")
    if not isinstance(groups, dict):
        return None
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get("block_structure"):
            return weights["block_structure"]
    return None
