"""ImportanceMatrix: the mean squares of the inputs of each weight, by which llama.cpp quantises.

`read_imatrix` reads both forms that llama.cpp's llama-imatrix writes, and `write_imatrix` writes
the newer one, which is a GGUF file.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSource
from ...formats.gguf.edit import RewrittenHeader
from ...formats.gguf.file import GgufFile
from ...formats.gguf.header import F32, GgufValue, TensorInfo, pad_size, string, strings, u32
from ...formats.kind import kind_of, refusal

SUMS = ".in_sum2"
COUNTS = ".counts"
DATASETS = "imatrix.datasets"
CHUNKS = "imatrix.chunk_count"
CHUNK_SIZE = "imatrix.chunk_size"
MOST_ENTRIES = 1 << 16
MOST_NAME = 1 << 10
MOST_DATASET = 1 << 16
MOST_VALUES = 1 << 28
"""Numbers of one weight: the columns of all experts of a layer."""


@dataclass(frozen=True, eq=False)
class ImportanceMatrix:
    """An importance matrix, as llama.cpp's quantiser takes it."""

    name: str
    """The name of its file, without the folder."""

    sha256: str
    """The digest of its file."""

    entries: Mapping[str, NDArray[np.float32]]
    """The mean square of each column of a weight, by its name; of experts, one after another."""

    dataset: str
    """The name of the text that it was computed from; empty where the file does not say."""

    chunks: int
    """The pieces of text that the model saw; 0 where the file does not say."""


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Read an importance matrix of llama.cpp, from a GGUF file or from the older imatrix.dat.

    Args:
        path: A GGUF file, or imatrix.dat.

    Raises:
        BadSource: For another file, and for a damaged one.
    """
    kind = kind_of(path)
    if kind == "gguf":
        entries, dataset, chunks = _read_gguf(path)
    elif kind == "imatrix":
        with path.open("rb") as file:
            entries, dataset, chunks = _read_legacy(file, path.name)
    else:
        raise BadSource(f"--imatrix: {refusal(path, 'an importance matrix of llama.cpp')}")

    for name, values in entries.items():
        if not np.isfinite(values).all():
            raise BadSource(
                f"{path.name} has numbers that are not finite for {name}; make it again from a"
                " model in F32 or BF16"
            )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ImportanceMatrix(path.name, digest, entries, dataset, chunks)


Content = tuple[dict[str, NDArray[np.float32]], str, int]
"""Entries, the name of the text, and the number of pieces."""


def _read_gguf(path: Path) -> Content:
    """Read an importance matrix from a GGUF file: its entries, data set, and pieces of text.

    An entry is the mean square of the inputs in each column of a weight, {"blk.0.attn_q.weight":
    [0.7, ...]}, as `load_imatrix` in llama.cpp's tools/quantize/quantize.cpp computes it.
    """
    file = GgufFile.open(path)
    for key in (DATASETS, CHUNKS, CHUNK_SIZE):
        if file.get(key) is None:
            raise BadSource(
                f"{path.name} is not an importance matrix: it has no {key}; give the file that"
                " llama-imatrix wrote"
            )

    # each weight has sums of squares, [experts, columns], and counts of tokens, [experts]
    entries = {}
    for sums_name in file.tensors:
        if not sums_name.endswith(SUMS):
            continue
        weight = sums_name.removesuffix(SUMS)
        counts_name = weight + COUNTS
        if counts_name not in file.tensors:
            raise BadSource(f"{path.name} has no counts for {weight}; make it again")
        sums = _floats(file, sums_name)
        # llama.cpp rounds the counts, which are stored as floats
        counts = np.rint(_floats(file, counts_name)).astype(np.float32)
        if sums.size % counts.size:
            raise BadSource(f"{path.name} has {sums.size} sums for {weight}; make it again")
        entries[weight] = _mean_squares(sums.reshape(counts.size, -1), counts).reshape(-1)
    if not entries:
        raise BadSource(f"{path.name} is an importance matrix without entries; make it again")

    datasets = file.get(DATASETS)
    dataset = str(datasets[0]) if datasets else ""
    return entries, dataset, int(file.get(CHUNKS))


def _mean_squares(
    sums: NDArray[np.float32], token_counts: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the mean square of each column of the experts of a layer, [experts, columns].

    An expert that saw no token has 1 in all columns. A weight without experts counts as one.

    Args:
        sums: Sums of squares over tokens, [experts, columns].
        token_counts: How many tokens each expert saw, [experts].
    """
    means = np.ones_like(sums)
    saw_tokens = token_counts > 0
    means[saw_tokens] = sums[saw_tokens] / token_counts[saw_tokens, None]
    return means


def _floats(file: GgufFile, name: str) -> NDArray[np.float32]:
    """The numbers of a tensor in F32."""
    if file.tensors[name].type != F32:
        raise BadSource(f"{file.name} has {name} in another type than F32; make it again")
    return np.frombuffer(file.read(name), "<f4").astype(np.float32)


def _read_legacy(file: BinaryIO, name: str) -> Content:
    """Read imatrix.dat (`common_imatrix_load_legacy` in llama.cpp's imatrix-loader.cpp).

    The file has the number of entries, and for each entry: the length of its name, the name, a
    number of pieces of text, the number of its values, and the values. They are mean squares times
    the number of pieces. Newer files end with the pieces of the whole text and the text's name.
    """
    entry_count = _read_int(file, name)
    if not 0 < entry_count <= MOST_ENTRIES:
        raise BadSource(f"{name} claims {entry_count} entries; fetch or make it again")
    entries = {}
    for _ in range(entry_count):
        weight, mean_squares = _read_legacy_entry(file, name)
        entries[weight] = mean_squares

    # older files end here
    at_end = not file.peek(1)  # type: ignore[attr-defined]
    if at_end:
        return entries, "", 0

    # the name of the text may be missing
    chunks = _read_int(file, name)
    length_bytes = file.read(4)
    if len(length_bytes) < 4:
        return entries, "", chunks
    [dataset_length] = struct.unpack("<i", length_bytes)
    dataset = ""
    if 0 < dataset_length <= MOST_DATASET:
        dataset = _text_before_zero(file.read(dataset_length))
    return entries, dataset, chunks


def _read_legacy_entry(file: BinaryIO, file_name: str) -> tuple[str, NDArray[np.float32]]:
    """Return the next entry of imatrix.dat: the name of a weight, and the mean squares of inputs.

    Args:
        file: The open file.
        file_name: Its name, for messages.
    """
    name_length = _read_int(file, file_name)
    if not 0 < name_length <= MOST_NAME:
        raise BadSource(f"{file_name} has a name of {name_length} bytes; fetch or make it again")
    weight = _text_before_zero(file.read(name_length))

    pieces = _read_int(file, file_name)
    value_count = _read_int(file, file_name)
    if not 0 < value_count <= MOST_VALUES:
        raise BadSource(
            f"{file_name} claims {value_count} numbers for {weight}; fetch or make it again"
        )
    data = file.read(4 * value_count)
    if len(data) < 4 * value_count:
        raise _cut_off(file_name)
    values = np.frombuffer(data, "<f4").astype(np.float32)

    # llama.cpp divides by the number of pieces of text (ncall) too, unless that is 0
    # (load_legacy_imatrix in tools/quantize/quantize.cpp)
    if pieces > 0:
        values = values / np.float32(pieces)
    return weight, values


def _read_int(file: BinaryIO, name: str) -> int:
    """Return the next integer of imatrix.dat, of 32 bits."""
    data = file.read(4)
    if len(data) < 4:
        raise _cut_off(name)
    return int(struct.unpack("<i", data)[0])


def _cut_off(name: str) -> BadSource:
    return BadSource(f"{name} ends too early; fetch or make it again")


def _text_before_zero(data: bytes) -> str:
    """The text of a string that C ends with a byte of 0."""
    text, _, _ = data.partition(b"\0")
    return text.decode(errors="replace")


def imatrix_file(
    sums: Mapping[str, NDArray[np.float32]],
    counts: Mapping[str, NDArray[np.int64]],
    dataset: str,
    chunks: int,
    chunk_size: int,
) -> bytes:
    """Return an importance matrix as the GGUF file that llama-imatrix writes.

    Args:
        sums: Sums of squares by the name of a weight, [columns], or [experts, columns].
        counts: How many rows of inputs were summed, [1] or [experts].
        dataset: The name of the text.
        chunks: The pieces of text that the model saw.
        chunk_size: The tokens of a piece.
    """
    values: dict[str, GgufValue] = {
        "general.type": string("imatrix"),
        DATASETS: strings([dataset.encode()]),
        CHUNKS: u32(chunks),
        CHUNK_SIZE: u32(chunk_size),
    }
    # two tensors for each weight, [experts, columns] and [experts, 1]
    numbers_of: dict[str, NDArray[np.float32]] = {}
    for weight in sorted(sums, key=str.encode):
        expert_count = len(counts[weight])
        counts_as_floats = counts[weight].astype(np.float32)
        numbers_of[weight + SUMS] = sums[weight].reshape(expert_count, -1)
        numbers_of[weight + COUNTS] = counts_as_floats.reshape(expert_count, 1)

    # their entries in the header, and their data, each padded to a multiple of 32 bytes
    tensors: dict[str, TensorInfo] = {}
    parts = []
    offset = 0
    for name, numbers in numbers_of.items():
        data = numbers.astype("<f4").tobytes()
        rows, columns = numbers.shape
        gguf_shape = (columns, rows)  # fastest dimension first
        tensors[name] = TensorInfo(name, gguf_shape, F32, offset, len(data))
        padded_size = pad_size(len(data), 32)
        padding = bytes(padded_size - len(data))
        parts.append(data + padding)
        offset += padded_size
    header = RewrittenHeader(values=values, tensors=tensors, alignment=32, kept_size=0)
    return header.plain() + b"".join(parts)
