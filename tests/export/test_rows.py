"""Rows that are moved, transposed and packed on the way to GGUF, against numpy and gguf-py."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from ropeconv.export.rows import Rows, Weights
from ropeconv.export.write import _read, mxfp4
from ropeconv.sources.folder import FolderSource

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _decoded(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The numbers of MXFP4 as transformers unpacks them: neighbours share a byte, the lower half first."""
    table = np.array([*VALUES, *(-value for value in VALUES)], np.float32)
    pairs = np.stack([table[blocks & 0x0F], table[blocks >> 4]], axis=-1)
    return (pairs.reshape(*blocks.shape[:-1], 32) * 2.0 ** (scales[..., None].astype(np.float32) - 127)).reshape(
        len(blocks), -1
    )


def test_blocks_of_mxfp4_keep_their_numbers(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (6, 3, 16), np.uint8)
    scales = generator.integers(110, 140, (6, 3), np.uint8)
    path = tmp_path / "blocks"
    path.write_bytes(b"head" + blocks.tobytes() + scales.tobytes())
    rows = Rows(Weights(FolderSource(tmp_path), path.name), "MXFP4", 4, 6, 96, 96, scales=4 + blocks.nbytes)
    kind = gguf.GGMLQuantizationType.MXFP4
    expected = _decoded(blocks, scales)
    assert np.array_equal(gguf.quants.dequantize(mxfp4(rows).reshape(6, -1), kind), expected)
    odd = gguf.quants.dequantize(mxfp4(rows.part(1, 3, 2)).reshape(3, -1), kind)
    assert np.array_equal(odd, expected[1::2])
    assert not np.array_equal(odd, expected[::2])


def test_parts_and_transposed_rows_are_those_of_numpy(tmp_path: Path) -> None:
    matrix = np.arange(40, dtype="<f4").reshape(8, 5)
    path = tmp_path / "matrix"
    path.write_bytes(matrix.tobytes())
    rows = Rows(Weights(FolderSource(tmp_path), path.name), "F32", 0, 8, 5, 5)
    assert np.array_equal(_read(rows.part(2, 3)), matrix[2:5])
    assert np.array_equal(_read(rows.part(1, 4, 2)), matrix[1::2])
    assert np.array_equal(_read(rows.transposed()), matrix.T)
    assert np.array_equal(_read(rows.part(2, 4).transposed().part(1, 2, 2)), matrix[2:6].T[1::2])
