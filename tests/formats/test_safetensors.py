"""Headers: exactly what the reference implementation writes, and none of what it would not."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ropeconv.errors import BadSource
from ropeconv.formats.index import safe_name
from ropeconv.formats.safetensors import MAX_HEADER, header_bytes, read_header, write_stream
from ropeconv.sources import Source, open_source

from ..faults.inputs.folders import write_checkpoint


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    tensors = {"b": np.zeros((2, 3), np.float32), "a": np.ones(5, np.float16), "empty": np.zeros((0, 4), np.int64)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "np"})
    header = read_header(tmp_path / "x.safetensors")
    assert {name: (t.dtype, t.shape) for name, t in header.tensors.items()} == {
        "b": ("F32", (2, 3)), "a": ("F16", (5,)), "empty": ("I64", (0, 4)),
    }  # fmt: skip
    assert header.metadata == {"format": "np"}


def test_writes_what_safetensors_reads(tmp_path: Path) -> None:
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=np.float16)
    header = header_bytes([("one", "F32", (2, 3)), ("two", "F16", (3,))], {"format": "pt"})
    write_stream(tmp_path / "x.safetensors", header, iter([memoryview(first.tobytes()), memoryview(second.tobytes())]))
    found = load_file(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(found["one"], first)
    np.testing.assert_array_equal(found["two"], second)


def packed(entries: Any, data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return struct.pack("<Q", len(text)) + text + data


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "too short"),
        (struct.pack("<Q", 1 << 60), "claims a header of"),
        (struct.pack("<Q", 100) + b"{}", "claims a header of"),
        (packed(b"not json"), "no readable safetensors header"),
        (packed([1, 2]), "no readable safetensors header"),
        (packed({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"0000"), "no readable"),
        (packed({"a": {**ONE, "shape": [-1]}}, b"0000"), "no readable"),
        (packed({"a": {**ONE, "shape": [2]}}, b"0000"), "no readable"),
        (packed({"a": {**ONE, "data_offsets": [4, 8]}}, b"00000000"), "a hole or an overlap"),
        (packed({"a": ONE, "b": ONE}, b"0000"), "a hole or an overlap"),
        (packed({"a": ONE}, b"00"), "is truncated"),
        (packed({"a": ONE}, b"000000"), "bytes behind its last tensor"),
        (packed(b"[" * 100_000), "no readable"),
        (packed({"a": {**ONE, "dtype": "F5"}}, b"0000"), "'a' has the dtype 'F5', which is not known"),
        (packed({"a": {**ONE, "dtype": []}}, b"0000"), "no readable"),
        (packed({"a": {**ONE, "shape": [1] * 65}}, b"0000"), "no readable"),
        (packed({"a": {**ONE, "shape": [1.0]}}, b"0000"), "no readable"),
        (packed({"a": {**ONE, "data_offsets": [0, 2**64]}}, b"0000"), "no readable"),
        (packed({"__metadata__": {"a": 1}}), "no readable"),
        (packed(b'{"a": NaN}'), "no readable"),
        (packed(b'{"\\ud800": 1}'), "no readable"),
        (packed(b" " * (MAX_HEADER + 1)), "at most 16,777,216 are read"),
    ],
)
def test_refuses(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(BadSource, match=words):
        read_header(tmp_path / "x.safetensors")


def test_headers_that_are_large_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(write_checkpoint(tmp_path / "model")))
    assert isinstance(source, Source)
    monkeypatch.setattr("ropeconv.sources.source.MAX_HEADERS", 100)
    with pytest.raises(BadSource, match="the headers of .* have more than 100 bytes"):
        _ = source.headers
    monkeypatch.undo()
    monkeypatch.setattr("ropeconv.sources.source.MOST_TENSORS", 20)
    with pytest.raises(BadSource, match="or 20 tensors"):
        _ = source.headers
    monkeypatch.undo()
    assert list(source.headers) == ["model.safetensors"]


@given(st.binary(max_size=200))
def test_never_fails_in_another_way(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadSource):
        read_header(path)


@pytest.mark.parametrize("name", ["model.safetensors", "a/b.safetensors", "model-00001-of-00002.safetensors"])
def test_names_inside(name: str) -> None:
    assert safe_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/../../x", "/etc/x", "C:\\x", "a\\b", "C:x", "x\0"])
def test_names_outside(name: str) -> None:
    assert not safe_name(name)
