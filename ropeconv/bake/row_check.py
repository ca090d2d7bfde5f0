"""Compares the layers of a conversion with each other: the rows of each are those of the first.

`refuse_other_rows` is the function to read first. A conversion renames tensors and changes the
order of their rows. The first layer of each kind is run beside the checkpoint, which shows that
order to be right. Where each row came from is found there by its numbers, and not by the rules of
the conversion; the rows of all other layers must have come from the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..convert.fold import FLOATS
from ..errors import Disagreement
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import TYPES
from ..formats.safetensors import STORED, widen
from ..models.layers import layer_prefix
from ..models.source import Source
from .fold_check import EXPERTS, sample_rows
from .gguf import ExportPlan

Numbers = NDArray[np.float32]

COLUMNS = 64
"""Numbers of a row that are compared, at least; a block of a quantised type may have more."""
LEAST_CORRELATION = 0.9
"""The correlation of two rows that are the same but for rounding. By chance, 64 random numbers of
any of 100,000 rows have one of up to 0.55.
"""

Origin = tuple[str, int]
"""A tensor of a layer of the checkpoint, without the prefix of the layer, and a row of it."""


@dataclass(frozen=True)
class _RowCheck:
    """A conversion and its checkpoint."""

    source: Source
    file: GgufFile
    rows_of_source: dict[str, Numbers] = field(default_factory=dict)
    """The first numbers of all rows of tensors of the layer that is searched now."""

    def run(self, kinds: tuple[str, ...]) -> None:
        """Compare the order of the rows of each layer with the first layer of its kind.

        A conversion to GGUF may put the rows of a matrix into another order, in all layers of one
        kind into the same. Raises Disagreement where a layer has another order than the first.

        Args:
            kinds: The kind of each layer, such as ("global", "local", "local", "local").
        """
        layers_by_kind: dict[str, list[int]] = {}  # e.g. {"global": [0, 6], "local": [1, 2, 3]}
        for layer, kind in enumerate(kinds):
            layers_by_kind.setdefault(kind, []).append(layer)

        for first, *others in layers_by_kind.values():
            if not others:
                continue
            self.rows_of_source.clear()  # the rows that were read for the kind before
            for suffix in self._matrices(first):
                origins = self._find_origins(suffix, first)
                for layer in others:
                    self._compare(suffix, layer, origins)

    def _matrices(self, layer: int) -> Iterator[str]:
        """Yield the names of the matrices of a layer in the file, without `blk.N.`."""
        prefix = f"blk.{layer}."
        for name, info in self.file.tensors.items():
            if name.startswith(prefix) and len(info.shape) == 2:
                yield name.removeprefix(prefix)

    def _find_origins(self, suffix: str, layer: int) -> dict[int, Origin]:
        """Return the rows of the checkpoint from which some rows of a matrix in the file were made.

        A conversion to GGUF interleaves the rows of `attn_q.weight` of a Llama. The result is then
        {0: ("self_attn.q_proj.weight", 0), 1: ("self_attn.q_proj.weight", 64), ...}: row 1 in the
        file is row 64 in the checkpoint. A row of the file has a correlation near 1 with the row
        that it was made from, and a low correlation with any other row.

        Args:
            suffix: The name of the matrix without its layer, such as "attn_q.weight".
            layer: The number of the layer.
        """
        # Some rows of the file, [sampled rows, columns], with length 1: the product of two vectors
        # of length 1 is their correlation. Only the first columns are read.
        name = f"blk.{layer}.{suffix}"
        columns, row_count = self.file.tensors[name].shape  # GGUF has the columns first
        sampled_rows = sample_rows(row_count)
        written_rows = _with_length_1(self._rows_of_file(name, sampled_rows))
        read_columns = written_rows.shape[1]

        # compare them with all rows of each matrix of the layer that has as many columns
        highest = dict.fromkeys(sampled_rows, LEAST_CORRELATION)  # the best correlation so far
        origins: dict[int, Origin] = {}
        for tensor in self._matrices_with_columns(layer, columns):
            original_rows = _with_length_1(self._all_rows(tensor, layer, read_columns))
            correlations = written_rows @ original_rows.T  # [sampled rows, rows of the tensor]
            for row, correlations_of_row in zip(sampled_rows, correlations, strict=True):
                most_similar_row = int(correlations_of_row.argmax())
                correlation = float(correlations_of_row[most_similar_row])
                if correlation > highest[row]:
                    highest[row] = correlation
                    origins[row] = (tensor, most_similar_row)
        return origins

    def _compare(self, suffix: str, layer: int, origins: dict[int, Origin]) -> None:
        """Raise Disagreement if a matrix has its rows in another order than in the first layer.

        A conversion puts the rows of a matrix into the same order in every layer. If row 1 of
        attn_q is row 64 of q_proj in the first layer, it must be row 64 of q_proj in this layer
        too.

        Args:
            suffix: The name of the matrix without its layer, such as "attn_q.weight".
            layer: The number of the layer.
            origins: The rows of the checkpoint from which the rows of the first layer were made. In
                the example, {1: ("self_attn.q_proj.weight", 64)}.
        """
        name = f"blk.{layer}.{suffix}"
        prefix = layer_prefix(layer, self.source.family, self.source.tensors)
        if name not in self.file.tensors or prefix is None or not origins:
            return

        # a layer may have fewer rows than the first layer
        _, row_count = self.file.tensors[name].shape
        rows = [row for row in origins if row < row_count]
        written_rows = _with_length_1(self._rows_of_file(name, rows))
        for written_row, row in zip(written_rows, rows, strict=True):
            # the row of the checkpoint that this row must be, such as row 64 of
            # "model.layers.5.self_attn.q_proj.weight"
            tensor, origin_row = origins[row]
            origin_name = prefix + tensor
            origin = self.source.tensors.get(origin_name)
            if origin is None or origin_row >= origin.shape[0]:
                continue
            original_numbers = self._row_of_source(origin_name, origin_row, len(written_row))
            [original_row] = _with_length_1(original_numbers[np.newaxis, :])

            # the product of two vectors of length 1 is their correlation
            correlation = float(written_row @ original_row)
            has_numbers = written_row.any() or original_row.any()  # not both only zeros
            if has_numbers and correlation < LEAST_CORRELATION:
                raise Disagreement(
                    f"row {row:,} of {name} is not that of {origin_name} from which the first"
                    " layers have it; report it; nothing was kept"
                )

    def _matrices_with_columns(self, layer: int, columns: int) -> Iterator[str]:
        """Yield the names, without prefix, of matrices of a layer that have a number of columns."""
        prefix = layer_prefix(layer, self.source.family, self.source.tensors)
        if prefix is None:
            return
        for name, tensor in self.source.tensors.items():
            is_of_layer = name.startswith(prefix) and EXPERTS not in name
            if is_of_layer and tensor.dtype in FLOATS and tensor.shape[1:] == (columns,):
                yield name.removeprefix(prefix)

    def _all_rows(self, tensor: str, layer: int, columns: int) -> Numbers:
        """The first numbers of all rows of a tensor of the checkpoint, [rows, columns]."""
        if tensor not in self.rows_of_source or self.rows_of_source[tensor].shape[1] != columns:
            prefix = layer_prefix(layer, self.source.family, self.source.tensors)
            matrix = self._matrix(f"{prefix}{tensor}")
            dtype = self.source.tensors[f"{prefix}{tensor}"].dtype
            self.rows_of_source[tensor] = widen(matrix[:, :columns], dtype)
        return self.rows_of_source[tensor]

    def _row_of_source(self, name: str, row: int, columns: int) -> Numbers:
        """The first numbers of a row of a tensor of the checkpoint."""
        return widen(self._matrix(name)[row, :columns], self.source.tensors[name].dtype)

    def _matrix(self, name: str) -> NDArray[np.generic]:
        """A tensor of the checkpoint, which is read where it is used."""
        for file, header in self.source.headers.items():
            tensor = header.tensors.get(name)
            if tensor is not None:
                return np.memmap(
                    self.source.path(file),
                    STORED[tensor.dtype],
                    "r",
                    offset=header.data_start + tensor.start,
                    shape=tensor.shape,
                )
        raise LookupError(name)

    def _rows_of_file(self, name: str, rows: list[int]) -> Numbers:
        """The first numbers of some rows of a matrix in the file, [rows, columns]."""
        import gguf

        info = self.file.tensors[name]
        kind = TYPES[info.type]
        columns = min(info.shape[0], max(kind.block, COLUMNS // kind.block * kind.block))
        row_size = info.shape[0] // kind.block * kind.size
        size = columns // kind.block * kind.size
        raw = [self.file.read(name, row * row_size, size) for row in rows]
        blocks = np.frombuffer(b"".join(raw), np.uint8).reshape(len(rows), -1)
        values: Numbers = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(info.type))
        return values.reshape(len(rows), columns)


def _with_length_1(rows: Numbers) -> Numbers:
    """Return rows, [rows, columns], divided by their lengths. Rows of zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def refuse_other_rows(plan: ExportPlan, path: Path) -> None:
    """Raise Disagreement where a layer of a conversion has rows of other places than the first.

    Nothing is compared where the checkpoint is converted first, or on the Hub.

    Args:
        plan: The plan of the output.
        path: The file that was written.
    """
    source = plan.source
    if source.has_stored_weights:
        _RowCheck(source, GgufFile.open(path)).run(plan.before.layers)
