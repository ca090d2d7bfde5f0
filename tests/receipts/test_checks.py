"""What receipts may say of folders, tensors and GGUF files, at the limits."""

from __future__ import annotations

import base64
import math
import struct
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import Header, TensorInfo, Value, string
from ropeconv.formats.gguf.values import array, f32_array, strings
from ropeconv.formats.safetensors import Tensor, read_header
from ropeconv.receipts.divided import check_scaled, write_divided
from ropeconv.receipts.folder_checked import check_folder
from ropeconv.receipts.gguf_checked import check_gguf, value_of
from ropeconv.receipts.original import FolderRecord, GgufRecord, ScaledRecord, SourceRecord, TextRecord, ValueRecord

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


FACTORS = (2.0, 0.5, 1.0, 2.0**-13, 2.0**125, 2.0**-127, 2.0 * (1 + 1e-10))
NO_FACTORS = (3.0, 0.7, -2.0, 0.0, float("nan"), float("inf"), 2.0**126, 2.0**-128, 2 * (1 + 1e-8))
SPANS = (((0, 1),), ((7, 8),), ((4, 8), (0, 4)), ((0, 2), (3, 5)))
NO_SPANS = (((0, 9),), ((-1, 2),), ((2, 2),), ((3, 2),), ((0, 4), (3, 5)))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("record", [*map(scaled, FACTORS), *(scaled(2.0, *spans) for spans in SPANS)])
def test_scalings_that_can_be_divided(record: ScaledRecord, dtype: str) -> None:
    check_scaled(record, tensor(dtype))


@pytest.mark.parametrize(
    ("record", "dtype", "words"),
    [
        *((scaled(factor), "F32", "which is no power of two") for factor in NO_FACTORS),
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
    monkeypatch.setattr("ropeconv.receipts.divided.CHUNK", piece)
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
    ("times", "factor", "kept"), [(2, 2.0, True), (1, 2.0, False), (1, 0.5, True), (0.5, 0.5, False)]
)
def test_subnormal_numbers_may_have_lost_bits(
    tmp_path: Path, dtype: Any, times: float, factor: float, kept: bool
) -> None:
    save_file({"t": torch.tensor([SMALLEST[dtype] * times, 1.0], dtype=dtype)}, tmp_path / "now")
    record = ScaledRecord("t", factor, ((0, 2),))

    def divide() -> None:
        write_divided(lambda: tmp_path / "now", [record], tmp_path / "then", lambda done: None)

    if kept:
        divide()
        assert load_file(tmp_path / "then")["t"].double().tolist() == [SMALLEST[dtype] * times / factor, 1 / factor]
        return
    with pytest.raises(BadSource, match=f"multiplied by {factor:g} and has numbers that may have lost bits"):
        divide()


@pytest.mark.parametrize(
    ("numbers", "factor", "words"),
    [([torch.inf, 1.0], 2.0, "may have lost bits"), ([1.0, 1.0], 3.0, "which is no power of two")],
)
def test_what_is_not_divided(tmp_path: Path, numbers: list[float], factor: float, words: str) -> None:
    save_file({"t": torch.tensor(numbers)}, tmp_path / "now")
    with pytest.raises(BadSource, match=words):
        write_divided(lambda: tmp_path / "now", [scaled(factor, (0, 2))], tmp_path / "then", lambda done: None)


# Folders


def text(name: str) -> TextRecord:
    return TextRecord(name, "", "")


OUTSIDE = (".git/config", "a/.x", "a//b", "a/", "./config.json", "x" * 241, "\u00e9" * 121, "y/" + "x" * 241)


@pytest.mark.parametrize(
    "record",
    [
        FolderRecord(),
        FolderRecord(added=(".hidden", "a/b"), skipped=("c",)),
        FolderRecord(renamed={"a.safetensors": "b/c.safetensors"}),
        FolderRecord(texts=(text("config.json"), text("a/b.json"))),
        FolderRecord(texts=(text("x" * 240),)),
        FolderRecord(added=("new.json",), texts=(text("new.json"),)),
        FolderRecord(renamed={"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}),
    ],
)
def test_what_a_bake_can_have_written(record: FolderRecord) -> None:
    check_folder(record, ["a.safetensors", "b.safetensors", "config.json", "ropeconv.json"], "model")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (FolderRecord(added=("../a",)), "names a file '../a', outside it"),
        (FolderRecord(skipped=("/a",)), "names a file '/a', outside it"),
        (FolderRecord(renamed={"../a.safetensors": "b.safetensors"}), "outside it or hidden"),
        (FolderRecord(renamed={"a.safetensors": "../b.safetensors"}), "outside it or hidden"),
        *((FolderRecord(texts=(text(name),)), "outside it or hidden") for name in OUTSIDE),
        (FolderRecord(renamed={"a.safetensors": "b.json"}), "only weights are renamed"),
        (FolderRecord(renamed={"config.json": "b.safetensors"}), "only weights are renamed"),
        (FolderRecord(texts=(text("ropeconv.json"),)), "another text of 'ropeconv.json'"),
        (FolderRecord(texts=(text("a.safetensors"),)), "another text of 'a.safetensors'"),
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


@pytest.mark.parametrize(
    "value",
    [string(""), string("\u00e9a"), Value(4, bytes(4)), Value(7, b"\1"), Value(10, bytes(8)), Value(12, bytes(8)),
     f32_array([]), f32_array([1, 2, 3]), array(10, [1]), strings([]), strings([b"", b"ab", b"c"])],
)  # fmt: skip
def test_values_come_back(value: Value) -> None:
    assert value_of(ValueRecord(value.kind, raw(value.raw))) == value
    for wrong in (value.raw + b"\0", value.raw[:-1]):
        if wrong:
            with pytest.raises(ValueError, match=f"{len(wrong)} bytes for a value of kind {value.kind}"):
                value_of(ValueRecord(value.kind, raw(wrong)))


def test_spaces_are_recorded_by_their_number() -> None:
    assert value_of(ValueRecord(8, spaces=3)) == string("   ")
    assert value_of(ValueRecord(8)) == string("")


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (4, None, "no bytes for a value of kind 4"), (99, bytes(4), "4 bytes for a value of kind 99"),
        (8, bytes(7), "7 bytes"), (8, struct.pack("<Q", 9) + b"short", "13 bytes"), (7, b"", "no bytes"),
        (9, b"x", "1 bytes"), (9, struct.pack("<IQ", 9, 0), "12 bytes"),
        (9, struct.pack("<IQ", 4, 1 << 60), "12 bytes"),
        (9, struct.pack("<IQ", 8, 1), "12 bytes"), (9, struct.pack("<IQ", 8, 1 << 60), "12 bytes"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_value(kind: int, data: bytes | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        value_of(ValueRecord(kind, None if data is None else raw(data)))


ARCH = "general.architecture"


def file(*infos: TensorInfo, alignment: int = 32) -> Any:
    tensors = {info.name: info for info in infos}
    header = Header(3, {ARCH: string("llama")}, tensors, alignment, 64, 64)
    return SimpleNamespace(name="m.gguf", tensors=tensors, header=header)


WEIGHT = TensorInfo("q", (16, 8), 0, 0, 512)
BIAS = TensorInfo("b", (8,), 0, 512, 32)


def gguf_record(**fields: Any) -> GgufRecord:
    return GgufRecord(**{"keys": (ARCH,), **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"version": 2}, {"tail": 1 << 16}, {"data_start": 0}, {"keys": (ARCH, "x" * 0xFFFF)},
        {"values": {"a": ValueRecord(8, spaces=1 << 24)}}, {"values": {ARCH: ValueRecord(8, raw(string("x").raw))}},
        {"contents": {"rope_freqs.weight": raw(np.float32([1, 0.5]).tobytes())}}, {"contents": {"other": raw(b"123")}},
        {"interleaved": ("q", "b", "absent"), "head_dim": 8}, {"interleaved": ("q",), "head_dim": 2},
        {"interleaved": ("b",), "head_dim": 4},
    ],
)  # fmt: skip
def test_what_a_bake_of_gguf_can_have_written(fields: dict[str, Any]) -> None:
    check_gguf(gguf_record(**fields), file(WEIGHT, BIAS))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version": 1}, "says GGUF version 1"), ({"version": 4}, "says GGUF version 4"),
        ({"data_start": -1}, "data began at byte -1 with 0"), ({"tail": -1}, "with -1 bytes"),
        ({"tail": (1 << 16) + 1}, "with 65537 bytes"), ({"keys": (ARCH, "a", "a")}, "names keys twice, or too long"),
        ({"keys": (ARCH, "x" * 0x10000)}, "names keys twice, or too long"), ({"keys": ("a",)}, f"has no {ARCH}"),
        ({"keys": (ARCH, "\u00e9" * 0x8000)}, "names keys twice, or too long"),
        ({"values": {"general.alignment": ValueRecord(4, raw(bytes(4)))}}, "has another general.alignment"),
        ({"values": {"a": ValueRecord(8, spaces=-1)}}, "asks for -1 spaces"),
        ({"values": {"a": ValueRecord(8, spaces=1 << 24), "b": ValueRecord(8, spaces=1)}}, "asks for 16777217 spaces"),
        ({"values": {"a": ValueRecord(4)}}, "no readable value under 'a'"),
        ({"values": {ARCH: ValueRecord(4, raw(bytes(4)))}}, f"no text under {ARCH}"),
        ({"contents": {"t": "?"}}, "no readable contents of t"),
        ({"contents": {"rope_freqs.weight": raw(np.float32([1, 0]).tobytes())}}, "that are not positive"),
        ({"contents": {"rope_freqs.weight": raw(b"12345")}}, "that are not positive"),
        ({"contents": {"rope_freqs.weight": raw(np.float32([np.nan]).tobytes())}}, "that are not positive"),
        *(({"interleaved": ("q",), "head_dim": size}, f"rows of q were reordered by {size}")
          for size in (0, 3, 1, 16, -8, 1 << 14)),
        ({"interleaved": ("rope_freqs.weight",), "head_dim": 8}, "rows of rope_freqs.weight were reordered"),
    ],
)  # fmt: skip
def test_what_no_bake_of_gguf_writes(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSource, match=words):
        check_gguf(gguf_record(**fields), file(WEIGHT, BIAS))


@pytest.mark.parametrize(
    ("shape", "head_dim", "divides"),
    [((1, 1 << 13), 1 << 13, True), ((1, 1 << 14), 1 << 14, False), ((8, 0), 8, False), ((0, 8), 8, False),
     ((5,), 8, False)],
)  # fmt: skip
def test_heads_of_tensors_of_odd_shapes(shape: tuple[int, ...], head_dim: int, divides: bool) -> None:
    record, info = (
        gguf_record(interleaved=("w",), head_dim=head_dim),
        TensorInfo("w", shape, 0, 0, 4 * math.prod(shape)),
    )
    with nullcontext() if divides else pytest.raises(BadSource, match="reordered"):
        check_gguf(record, file(info))


def test_the_alignment_is_that_of_the_file() -> None:
    check_gguf(gguf_record(keys=(ARCH, "general.alignment")), file(alignment=64))
    with pytest.raises(BadSource, match="has another general.alignment"):
        check_gguf(gguf_record(), file(alignment=64))
