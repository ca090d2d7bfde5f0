"""What receipts may say of folders, tensors and GGUF files, at the limits."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ropeconv.errors import BadSource
from ropeconv.formats.gguf.header import GgufHeader, TensorInfo
from ropeconv.formats.gguf.values import GgufValue, array, string, strings
from ropeconv.formats.safetensors import Tensor, read_header
from ropeconv.inspection.receipts.folder import check_folder, check_scaled, write_divided
from ropeconv.inspection.receipts.gguf import check_gguf, value_of
from ropeconv.inspection.receipts.receipt import (
    FolderRecord,
    GgufRecord,
    ScaledRecord,
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


# Tensors that were multiplied


def tensor(dtype: str = "F32", shape: tuple[int, ...] = (4, 2)) -> Tensor:
    return Tensor("t", dtype, shape, 0, 32)


def scaled(factor: float = 2.0, *spans: tuple[int, int]) -> ScaledRecord:
    return ScaledRecord("t", factor, spans or ((0, 8),))


NO_FACTORS = (3.0, 0.7, -2.0, 0.0, float("nan"), float("inf"), 2.0**126, 2.0**-128, 2 * (1 + 1e-8))
NO_SPANS = (((0, 9),), ((-1, 2),), ((2, 2),), ((3, 2),), ((0, 4), (3, 5)))


@pytest.mark.parametrize(
    ("record", "dtype", "words"),
    [
        *((scaled(factor), "F32", "which is not a power of two") for factor in NO_FACTORS),
        *((scaled(2.0, *spans), "F32", "multiplied from element .*, of 8") for spans in NO_SPANS),
        *((scaled(), dtype, f"multiplied as {dtype}") for dtype in ("F64", "F8_E4M3", "I32")),
    ],
)
def test_scalings_that_cannot_be_divided(record: ScaledRecord, dtype: str, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        check_scaled(record, tensor(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("piece", [3, 1 << 20])
def test_a_shard_is_copied_and_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any, piece: int) -> None:
    monkeypatch.setattr("ropeconv.inspection.receipts.folder.CHUNK", piece)
    before = (torch.arange(1, 41, dtype=torch.float32).reshape(10, 4) / 8).to(dtype)
    after = before.clone()
    after.view(-1)[4:12] *= 8
    after.view(-1)[20:27] *= 8
    save_file({"a": torch.ones(3), "t": after}, tmp_path / "now.safetensors")
    done: list[int] = []
    record = ScaledRecord("t", 8.0, ((4, 12), (20, 27)))
    write_divided(lambda: tmp_path / "now.safetensors", [record], tmp_path / "then.safetensors", done.append)
    found = load_file(tmp_path / "then.safetensors")
    assert torch.equal(found["t"], before)
    assert torch.equal(found["a"], torch.ones(3))
    assert sum(done) == (tmp_path / "now.safetensors").stat().st_size
    assert read_header(tmp_path / "then.safetensors") == read_header(tmp_path / "now.safetensors")


SMALLEST = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float16, torch.bfloat16)}


@pytest.mark.parametrize("dtype", SMALLEST)
@pytest.mark.parametrize(
    ("numbers", "factor"), [((1, 1.0), 2.0), ((0.5, 1.0), 0.5), ((torch.inf, 1.0), 2.0)],
)  # fmt: skip
def test_numbers_that_may_have_lost_bits_are_not_divided(
    tmp_path: Path, dtype: Any, numbers: tuple[float, float], factor: float
) -> None:
    save_file({"t": torch.tensor([SMALLEST[dtype] * numbers[0], numbers[1]], dtype=dtype)}, tmp_path / "now")
    with pytest.raises(BadSource, match=f"multiplied by {factor:g} and has numbers that may have lost bits"):
        write_divided(lambda: tmp_path / "now", [scaled(factor, (0, 2))], tmp_path / "then", lambda done: None)


# Folders


def text(name: str) -> TextRecord:
    return TextRecord(name, "", "")


OUTSIDE = (".git/config", "a/.x", "a//b", "a/", "./config.json", "x" * 241, "\u00e9" * 121, "y/" + "x" * 241)


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
        (FolderRecord(texts=(text("config.json/x"),)), "has 'config.json' as a file and as a folder"),
    ],
)
def test_what_no_bake_writes(record: FolderRecord, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        check_folder(record, ["a.safetensors", "b.safetensors", "config.json", "ropeconv.json"], "model")


# GGUF files


def raw(data: bytes) -> str:
    return base64.b64encode(data).decode()


VALUES = (
    string("\u00e9a"), GgufValue(4, bytes(4)), GgufValue(7, b"\1"), GgufValue(12, bytes(8)), array(6, [1.0, 2.0, 3.0]),
    array(10, [1]), strings([b"", b"ab", b"c"]),
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_values_come_back(value: GgufValue) -> None:
    assert value_of(ValueRecord(value.kind, raw(value.raw))) == value
    with pytest.raises(ValueError, match=f" bytes for a value of kind {value.kind}"):
        value_of(ValueRecord(value.kind, raw(value.raw + b"\0")))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (99, bytes(4)), (8, struct.pack("<Q", 9) + b"short"), (9, struct.pack("<IQ", 9, 0)),
        (9, struct.pack("<IQ", 4, 1 << 60)), (9, struct.pack("<IQ", 8, 1 << 60)),
    ],
)  # fmt: skip
def test_bytes_that_are_no_value(kind: int, data: bytes) -> None:
    with pytest.raises(ValueError, match=f"{len(data)} bytes for a value of kind {kind}"):
        value_of(ValueRecord(kind, raw(data)))


ARCH = "general.architecture"
HEADER = GgufHeader(3, {ARCH: string("llama")}, {"q": TensorInfo("q", (16, 8), 0, 0, 512)}, 32, 64, 64)
FILE: Any = SimpleNamespace(name="m.gguf", tensors=HEADER.tensors, header=HEADER)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version": 4}, "says GGUF version 4"), ({"data_start": -1}, "data began at byte -1 with 0"),
        ({"tail": (1 << 16) + 1}, "with 65537 bytes"), ({"keys": (ARCH, "a", "a")}, "names keys twice, or too long"),
        ({"keys": ("a",)}, f"has no {ARCH}"), ({"keys": (ARCH, "\u00e9" * 0x8000)}, "names keys twice, or too long"),
        ({"values": {"general.alignment": ValueRecord(4, raw(bytes(4)))}}, "has another general.alignment"),
        ({"values": {"a": ValueRecord(8, spaces=1 << 24), "b": ValueRecord(8, spaces=1)}}, "asks for 16777217 spaces"),
        ({"values": {"a": ValueRecord(4)}}, "no readable value under 'a'"),
        ({"values": {ARCH: ValueRecord(4, raw(bytes(4)))}}, f"no text under {ARCH}"),
        ({"contents": {"t": "?"}}, "no readable contents of t"),
        ({"contents": {"rope_freqs.weight": raw(np.float32([1, 0]).tobytes())}}, "that are not positive"),
        *(({"interleaved": ("q",), "head_dim": size}, f"rows of q were reordered by {size}")
          for size in (0, 3, 16, -8)),
        ({"interleaved": ("rope_freqs.weight",), "head_dim": 8}, "rows of rope_freqs.weight were reordered"),
    ],
)  # fmt: skip
def test_what_no_bake_of_gguf_writes(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSource, match=words):
        check_gguf(GgufRecord(**{"keys": (ARCH,), **fields}), FILE)
