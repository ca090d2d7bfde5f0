"""What receipts may say of folders, tensors and GGUF files, at the limits."""

import base64
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf.header import GgufHeader, GgufValue, TensorInfo, array, string, strings
from ropeconv.inspection.receipts.folder import check_folder
from ropeconv.inspection.receipts.gguf import check_gguf, value_of
from ropeconv.inspection.receipts.receipt import (
    FolderRecord,
    GgufRecord,
    SourceRecord,
    TextRecord,
    ValueRecord,
)

# Sources


@pytest.mark.parametrize(
    ("record", "repository", "described"),
    [
        (SourceRecord("m", "hub", "a/m", "0123"), "a/m", "a/m at commit 0123"),
        (SourceRecord("m", "gguf", "a/m/x.gguf@v1", "0123"), "a/m", "a/m/x.gguf@v1 at commit 0123"),
        (SourceRecord("m", "hub", "a/m", None), "", "a/m"),
        (SourceRecord("m", "folder", None, "0123"), "", "the local folder 'm'"),
        (SourceRecord("m", "gguf"), "", "the local file 'm'"),
        (SourceRecord("m", "hub", None, "0123"), "", "the local folder 'm'"),
    ],
)
def test_where_a_source_is_from(record: SourceRecord, repository: str, described: str) -> None:
    assert (record.repository, record.described) == (repository, described)


# Folders


def text(name: str) -> TextRecord:
    return TextRecord(name, "", "")


OUTSIDE = (
    ".git/config",
    "a/.x",
    "a//b",
    "a/",
    "./config.json",
    "x" * 241,
    "\u00e9" * 121,
    "y/" + "x" * 241,
)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (FolderRecord(added=("../a",)), "names a file '../a', outside it"),
        (FolderRecord(renamed={"../a.safetensors": "b.safetensors"}), "outside it or hidden"),
        *((FolderRecord(texts=(text(name),)), "outside it or hidden") for name in OUTSIDE),
        (FolderRecord(renamed={"a.safetensors": "b.json"}), "only weights are renamed"),
        (FolderRecord(texts=(text("ropeconv.json"),)), "another text of 'ropeconv.json'"),
        (FolderRecord(texts=(text("c"), text("c"))), "gives 'c' twice"),
        (FolderRecord(renamed={"a.safetensors": "b.safetensors"}), "gives 'b.safetensors' twice"),
        (FolderRecord(texts=(text("c/d"), text("c"))), "has 'c' as a file and as a folder"),
        (
            FolderRecord(texts=(text("config.json/x"),)),
            "has 'config.json' as a file and as a folder",
        ),
    ],
)
def test_what_no_bake_writes(record: FolderRecord, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        check_folder(
            record, ["a.safetensors", "b.safetensors", "config.json", "ropeconv.json"], "model"
        )


# GGUF files


def raw(data: bytes) -> str:
    return base64.b64encode(data).decode()


VALUES = (
    string("\u00e9a"),
    GgufValue(4, bytes(4)),
    GgufValue(7, b"\1"),
    GgufValue(12, bytes(8)),
    array(6, [1.0, 2.0, 3.0]),
    array(10, [1]),
    strings([b"", b"ab", b"c"]),
)


@pytest.mark.parametrize("value", VALUES)
def test_values_come_back(value: GgufValue) -> None:
    assert value_of(ValueRecord(value.kind, raw(value.raw))) == value
    with pytest.raises(ValueError, match=f"value of kind {value.kind}"):
        value_of(ValueRecord(value.kind, raw(value.raw + b"\0")))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (99, bytes(4)),
        (8, struct.pack("<Q", 9) + b"short"),
        (9, struct.pack("<IQ", 9, 0)),
        (9, struct.pack("<IQ", 4, 1 << 60)),
        (9, struct.pack("<IQ", 8, 1 << 60)),
    ],
)
def test_bytes_that_are_no_value(kind: int, data: bytes) -> None:
    with pytest.raises(ValueError, match=f"{len(data)} bytes .* kind {kind}"):
        value_of(ValueRecord(kind, raw(data)))


ARCH = "general.architecture"
HEADER = GgufHeader(
    3, {ARCH: string("llama")}, {"q": TensorInfo("q", (16, 8), 0, 0, 512)}, 32, 64, 64
)
FILE: Any = SimpleNamespace(name="m.gguf", tensors=HEADER.tensors, header=HEADER)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version": 4}, "says GGUF version 4"),
        ({"data_start": -1}, "data began at byte -1 with 0"),
        ({"tail": (1 << 16) + 1}, "with 65537 bytes"),
        ({"keys": (ARCH, "a", "a")}, "names keys twice, or too long"),
        ({"keys": ("a",)}, f"has no {ARCH}"),
        ({"keys": (ARCH, "\u00e9" * 0x8000)}, "names keys twice, or too long"),
        (
            {"values": {"general.alignment": ValueRecord(4, raw(bytes(4)))}},
            "has another general.alignment",
        ),
        (
            {"values": {"a": ValueRecord(8, spaces=1 << 24), "b": ValueRecord(8, spaces=1)}},
            "asks for 16777217 spaces",
        ),
        ({"values": {"a": ValueRecord(4)}}, "no readable value under 'a'"),
        ({"written": {"a": ValueRecord(4)}}, "no readable value under 'a'"),
        (
            {"written": {"a": ValueRecord(8, spaces=(1 << 24) + 1)}},
            "asks for 16777217 spaces",
        ),
        ({"values": {ARCH: ValueRecord(4, raw(bytes(4)))}}, f"no text under {ARCH}"),
        ({"contents": {"t": "?"}}, "no readable contents of t"),
        (
            {"contents": {"rope_freqs.weight": raw(np.float32([1, 0]).tobytes())}},
            "that are not positive",
        ),
        *(
            ({"interleaved": ("q",), "head_dim": size}, f"rows of q were reordered by {size}")
            for size in (0, 3, 16, -8)
        ),
        (
            {"interleaved": ("rope_freqs.weight",), "head_dim": 8},
            "rows of rope_freqs.weight were reordered",
        ),
    ],
)
def test_what_no_bake_of_gguf_writes(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSource, match=words):
        check_gguf(GgufRecord(**{"keys": (ARCH,), **fields}), FILE)
