"""Headers of safetensors: exactly what the reference implementation writes and reads, and none of what it would not."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load_file, save_file

from ropeconv.errors import BadSource
from ropeconv.formats.floats import STORED, widened
from ropeconv.formats.safetensors import BITS, MAX_HEADER, header_bytes, read_header, tensor_bytes, write_stream


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    tensors = {"b": np.zeros((2, 3), np.float32), "a": np.ones(5, np.float16), "empty": np.zeros((0, 4), np.int64)}
    for metadata in ({"format": "np"}, None):
        save_file(tensors, tmp_path / "x.safetensors", metadata=metadata)
        header = read_header(tmp_path / "x.safetensors")
        assert {name: (t.dtype, t.shape) for name, t in header.tensors.items()} == {
            "b": ("F32", (2, 3)), "a": ("F16", (5,)), "empty": ("I64", (0, 4)),
        }  # fmt: skip
        assert header.metadata == (metadata or {})
        assert header.data_start + 24 + 10 == (tmp_path / "x.safetensors").stat().st_size


def test_safetensors_reads_what_is_written(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(3, dtype=np.uint8),
        "c": np.float16([1]),
    }
    names = {"a": "F32", "b": "U8", "c": "F16"}
    header = header_bytes([(name, names[name], array.shape) for name, array in arrays.items()], {"format": "pt"})
    assert len(header) % 8 == 0
    write_stream(tmp_path / "x", header, iter([memoryview(array.tobytes()) for array in arrays.values()]))
    found, ours = load_file(tmp_path / "x"), read_header(tmp_path / "x")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    assert (ours.metadata, ours.data_start) == ({"format": "pt"}, len(header))
    places = {name: (tensor.start, tensor.stop, tensor.shape) for name, tensor in ours.tensors.items()}
    assert places == {"a": (0, 24, (2, 3)), "b": (24, 27, (3,)), "c": (27, 29, (1,))}


def packed(entries: Any, data: int = 0, length: int | None = None) -> bytes:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def one(dtype: Any = "F32", shape: Any = (1,), start: int = 0, stop: int = 4) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}}


@pytest.mark.parametrize("dtype", BITS)
def test_the_types_are_those_of_safetensors(tmp_path: Path, dtype: str) -> None:
    """Eight numbers take as many bytes as one has bits; the reference implementation refuses any other size."""
    for size in (BITS[dtype] - 1, BITS[dtype], BITS[dtype] + 1):
        (tmp_path / "x").write_bytes(packed(one(dtype, [8], 0, size), size))
        if size == BITS[dtype] == tensor_bytes(dtype, (2, 4)):
            assert deserialize((tmp_path / "x").read_bytes())[0][1]["dtype"] == dtype
            assert read_header(tmp_path / "x").tensors["a"].dtype == dtype
            continue
        with pytest.raises(SafetensorError):
            deserialize((tmp_path / "x").read_bytes())
        with pytest.raises(BadSource):
            read_header(tmp_path / "x")


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "too short"), "seven bytes": (bytes(7), "7 bytes, too short"),
    "a header of exabytes": (struct.pack("<Q", 1 << 60), "claims a header of"),
    "a header cut off": (packed({}, length=3), "claims a header of 3 bytes and has 10 in all"),
    "a header too long": (packed(b" " * (MAX_HEADER + 1)), "a header of 16,777,217 bytes, and at most 16,777,216"),
    "no JSON": (packed(b"not json"), "no readable safetensors header"), "a list": (packed([1, 2]), "no readable"),
    "a deep list": (packed(b"[" * 100_000), "no readable"), "a number": (packed(b'{"a": NaN}'), "no readable"),
    "half a letter": (packed(b'{"\\ud800": 1}'), "no readable"),
    "metadata": (packed({"__metadata__": {"a": 1}}), "no readable"),
    "missing keys": (packed({"a": {"dtype": "F32"}}), "no readable"),
    "an unknown type": (packed(one("F5"), 4), "'a' has the dtype 'F5', which is not known"),
    "no type": (packed(one([]), 4), "no readable"), "a fraction": (packed(one(shape=[1.0]), 4), "no readable"),
    "a side below 0": (packed(one(shape=[-2], stop=8), 8), r"shape\[0\]"),
    "a place below 0": (packed(one(start=-8, stop=0), 8), r"data_offsets\[0\]"),
    "a place beyond 2^62": (packed(one(stop=2**64), 4), "no readable"),
    "65 sides": (packed(one("U8", [1] * 65, stop=1), 1), "'a' is U8"),
    "another size": (packed(one(shape=[2]), 4), r"'a' is F32 \[2\] in 4 bytes"),
    "a hole": (packed(one(start=1, stop=5), 9), "hole or an overlap before 'a'"),
    "an overlap": (packed({**one("U8", [2], 0, 2), "b": one("U8", [2], 1, 3)["a"]}, 3), "an overlap before 'b'"),
    "twice": (packed({**one(), "b": one()["a"]}, 4), "hole or an overlap before"),
    "a byte too few": (packed(one(), 3), "its tensors need 4 bytes and 3 are there"),
    "a byte too many": (packed(one(), 5), "has 1 bytes behind its last tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(REFUSED[name][0])
    with pytest.raises(BadSource, match=REFUSED[name][1]):
        read_header(tmp_path / "x")


def test_what_is_just_within_the_limits(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(packed({}))
    assert read_header(tmp_path / "x").data_start == 10
    (tmp_path / "x").write_bytes(packed(one("U8", [1] * 64, stop=1), 1))
    assert len(read_header(tmp_path / "x").tensors["a"].shape) == 64
    (tmp_path / "x").write_bytes(packed(one("F4", [3], stop=2), 2))
    assert read_header(tmp_path / "x").tensors["a"].stop == 2, "rounded up"


@given(st.binary(max_size=200))
def test_bytes_at_random_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadSource):
        read_header(path)


def test_every_type_of_floats_as_32_bits() -> None:
    numbers = np.array([1.0, -2.5, 0.15625], np.float32)
    stored = {
        "F32": numbers, "F64": numbers.astype("<f8"), "F16": numbers.astype("<f2"),
        "BF16": (numbers.view(np.uint32) >> 16).astype("<u2"),
    }  # fmt: skip
    for dtype, values in stored.items():
        kept = values.copy()
        found = widened(np.frombuffer(values.tobytes(), STORED[dtype]), dtype)
        np.testing.assert_array_equal(found, numbers)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(values, kept)
