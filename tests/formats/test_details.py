"""Formats at their limits: short copies, odd headers, indexes and numbers of any width."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load_file, save_file

from ropeconv.errors import BadSource, UsageError
from ropeconv.formats import copying, jsontext
from ropeconv.formats.copying import copy_file, copy_part, free_bytes, human, link_file, same_blocks
from ropeconv.formats.digest import BLOCK, sha256
from ropeconv.formats.floats import STORED, widened
from ropeconv.formats.index import INDEX, index_of, safe_name, shards, tensors, with_shard, with_size
from ropeconv.formats.safetensors import BITS, header_bytes, read_header, tensor_bytes, write_stream
from ropeconv.formats.template import render
from ropeconv.formats.vectors import read_lists


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_kernel_that_copies_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """copy_file_range may copy less than it is asked for, each time: copy_file_range(2)."""
    whole, asked = os.copy_file_range, []

    def short(reader: int, writer: int, count: int, origin: int, goal: int) -> int:
        asked.append((count, origin, goal))
        return whole(reader, writer, min(count, most), origin, goal)

    monkeypatch.setattr(os, "copy_file_range", short)
    data = os.urandom(100 * most + 3)
    (tmp_path / "source").write_bytes(data)
    (tmp_path / "target").write_bytes(b"head!")
    done: list[int] = []
    with (tmp_path / "source").open("rb") as reader, (tmp_path / "target").open("r+b") as writer:
        copy_part(reader, 2, writer, 5, len(data) - 2, done.append)
    assert (tmp_path / "target").read_bytes() == b"head!" + data[2:]
    assert sum(done) == len(data) - 2
    assert asked[0] == (len(data) - 2, 2, 5)
    assert asked[1] == (len(data) - 2 - most, 2 + most, 5 + most)


@pytest.mark.parametrize("after", [0, 4])
def test_what_the_kernel_leaves_is_copied_through_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Stops after some bytes and says nothing, or that it cannot; the rest goes in blocks of any size."""
    whole = os.copy_file_range

    def stops(reader: int, writer: int, count: int, origin: int, goal: int) -> int:
        if origin == 3:
            return whole(reader, writer, 2, origin, goal)
        if after:
            raise OSError(errno.EXDEV, "no")
        return 0

    monkeypatch.setattr(os, "copy_file_range", stops)
    monkeypatch.setattr(copying, "BLOCK", 4)
    (tmp_path / "source").write_bytes(bytes(range(50)))
    done: list[int] = []
    with (tmp_path / "source").open("rb") as reader, (tmp_path / "target").open("wb") as writer:
        writer.write(b"ab")
        copy_part(reader, 3, writer, 2, 20, done.append)
        assert (tmp_path / "target").read_bytes() == b"ab" + bytes(range(3, 23)), "flushed"
    assert done == [2, 4, 4, 4, 4, 2]


def test_a_copy_comes_after_what_was_written_before_it(tmp_path: Path) -> None:
    """Also where the file object still holds that back: what is copied over it stays."""
    (tmp_path / "source").write_bytes(b"12345")
    with (tmp_path / "source").open("rb") as reader, (tmp_path / "target").open("wb") as writer:
        writer.write(b"abcdefg")
        copy_part(reader, 0, writer, 1, 5)
        writer.write(b"!")
    assert (tmp_path / "target").read_bytes() == b"a12345!"


def test_other_errors_of_a_copy_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "source").write_bytes(b"12345")
    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(OSError, match="full"):
        copy_file(tmp_path / "source", tmp_path / "target")


def test_large_copies_are_asked_for_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, asked = os.copy_file_range, []

    def noted(reader: int, writer: int, count: int, origin: int, goal: int) -> int:
        asked.append(count)
        return whole(reader, writer, count, origin, goal)

    monkeypatch.setattr(os, "copy_file_range", noted)
    monkeypatch.setattr(copying, "RANGE", 10)
    (tmp_path / "source").write_bytes(bytes(25))
    copy_file(tmp_path / "source", tmp_path / "target")
    assert asked == [10, 10, 5]
    assert (tmp_path / "target").read_bytes() == bytes(25)


def test_a_filesystem_that_shares_blocks_copies_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(reader: int, writer: int) -> bool:
        os.pwrite(writer, os.pread(reader, 100, 0), 0)
        return True

    def never(*arguments: object) -> int:
        raise AssertionError("copied")

    monkeypatch.setattr(copying, "_reflink", shared)
    monkeypatch.setattr(os, "copy_file_range", never)
    (tmp_path / "source").write_bytes(b"12345")
    done: list[int] = []
    copy_file(tmp_path / "source", tmp_path / "target", done.append)
    assert ((tmp_path / "target").read_bytes(), done) == (b"12345", [5])


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EMLINK, errno.EPERM])
def test_links_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "source").write_bytes(b"1")
    assert link_file(tmp_path / "source", tmp_path / "target") is False


def test_links_to_nothing_and_free_bytes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        link_file(tmp_path / "absent", tmp_path / "target")
    there = os.statvfs(tmp_path)
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(there.f_bavail * there.f_frsize, rel=0.05)
    assert same_blocks(None, tmp_path) is False
    (tmp_path / "source").write_bytes(bytes(4096))
    shared = same_blocks(tmp_path / "source", tmp_path)
    assert isinstance(shared, bool)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert same_blocks(tmp_path / "absent", tmp_path) is False


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 B"),
        (999, "999.0 B"),
        (1000, "1.0 kB"),
        (1_500_000, "1.5 MB"),
        (10**12, "1.0 TB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_sizes_in_decimal_units(size: int, text: str) -> None:
    assert human(size) == text


def test_a_digest_of_several_blocks(tmp_path: Path) -> None:
    for size in (0, 1, BLOCK, BLOCK + 1):
        data = os.urandom(size)
        (tmp_path / "file").write_bytes(data)
        assert sha256(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_every_number_type_as_32_bit_floats() -> None:
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


# safetensors


def odd(path: Path, entries: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str, shape: list[Any], start: Any, stop: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_a_header_of_ours_is_read_by_safetensors(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(3, dtype=np.uint8),
        "c": np.float16([1]),
    }
    names = {"a": "F32", "b": "U8", "c": "F16"}
    header = header_bytes([(name, names[name], array.shape) for name, array in arrays.items()], {"format": "pt"})
    assert len(header) % 8 == 0
    write_stream(tmp_path / "x.safetensors", header, iter([memoryview(array.tobytes()) for array in arrays.values()]))
    found = load_file(tmp_path / "x.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    ours = read_header(tmp_path / "x.safetensors")
    assert ours.metadata == {"format": "pt"}
    assert ours.data_start == len(header)
    places = {name: (tensor.start, tensor.stop, tensor.shape) for name, tensor in ours.tensors.items()}
    assert places == {"a": (0, 24, (2, 3)), "b": (24, 27, (3,)), "c": (27, 29, (1,))}


def test_a_header_of_safetensors_is_read_by_us(tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 5), np.int64)}, tmp_path / "x.safetensors")
    header = read_header(tmp_path / "x.safetensors")
    assert header.metadata == {}
    assert (header.tensors["a"].dtype, header.tensors["a"].shape) == ("I64", (3, 5))
    assert header.data_start + 120 == (tmp_path / "x.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [("F32", (2, 3), 24), ("BF16", (5,), 10), ("F4", (4,), 2), ("BOOL", (), 1), ("F64", (0, 9), 0)],
)
def test_sizes_of_tensors(dtype: str, shape: tuple[int, ...], size: int) -> None:
    assert tensor_bytes(dtype, shape) == size


def test_numbers_of_less_than_a_byte_are_rounded_up(tmp_path: Path) -> None:
    path = odd(tmp_path / "x", {"a": entry("F4", [3], 0, 2)}, bytes(2))
    assert read_header(path).tensors["a"].stop == 2


@pytest.mark.parametrize(
    ("entries", "data", "words"),
    [
        ({"a": entry("F32", [2], 0, 8)}, bytes(7), "its tensors need 8 bytes and 7 are there"),
        ({"a": entry("F32", [2], 0, 8)}, bytes(9), "has 1 bytes behind its last tensor"),
        ({"a": entry("F32", [2], 1, 9)}, bytes(9), "hole or an overlap before 'a'"),
        ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, bytes(3), "hole or an overlap before 'b'"),
        ({"a": entry("F32", [2], 0, 4)}, bytes(4), r"'a' is F32 \[2\] in 4 bytes"),
        ({"a": entry("F32", [-2], 0, 8)}, bytes(8), r"shape\[0\]"),
        ({"a": entry("F32", [2], -8, 0)}, bytes(8), r"data_offsets\[0\]"),
        ({"a": entry("F32", [2.0], 0, 8)}, bytes(8), "safetensors header"),
        ({"a": entry("F31", [2], 0, 8)}, bytes(8), "safetensors header"),
        ({"a": {"dtype": "F32"}}, b"", "safetensors header"),
        ([], b"", "safetensors header"),
    ],
)
def test_no_safetensors(tmp_path: Path, entries: Any, data: bytes, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        read_header(odd(tmp_path / "x", entries, data))


def test_headers_that_are_too_short_or_too_long(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(7))
    with pytest.raises(BadSource, match="7 bytes, too short"):
        read_header(tmp_path / "x")
    with pytest.raises(BadSource, match="claims a header of 3 bytes and has 10 in all"):
        read_header(odd(tmp_path / "x", {}, length=3))
    assert read_header(odd(tmp_path / "x", {}, length=2)).data_start == 10
    with (tmp_path / "x").open("r+b") as file:
        file.write(struct.pack("<Q", (16 << 20) + 1))
        file.truncate(17 << 20)
    with pytest.raises(BadSource, match="a header of 16,777,217 bytes, and at most 16,777,216"):
        read_header(tmp_path / "x")


# Indexes and other JSON


@pytest.mark.parametrize("name", ["a", "a/b", "a.b", "..a", "a..", ".a"])
def test_names_inside_a_folder(name: str) -> None:
    assert safe_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "../a", "a/../b", "a\\b", "c:a", "a\0b"])
def test_names_outside_a_folder(name: str) -> None:
    assert not safe_name(name)


def test_indexes() -> None:
    text = json.dumps({"metadata": {"total_size": 10, "x": 1}, "weight_map": {"b": "2", "a": "1", "c": "2"}}, indent=4)
    assert shards(text) == ("1", "2")
    assert tensors(text) == ("b", "a", "c")
    more = json.loads(with_shard(text, "3", {"d": 5, "e": 7}))
    assert more == {
        "metadata": {"total_size": 22, "x": 1}, "weight_map": {"b": "2", "a": "1", "c": "2", "d": "3", "e": "3"},
    }  # fmt: skip
    assert with_size(text, 3) == text.replace("10", "13") + "\n"
    for odd_one in ({"weight_map": {}}, {"metadata": {"total_size": "10"}, "weight_map": {}}):
        assert json.loads(with_size(json.dumps(odd_one), 3)) == odd_one
    assert json.loads(index_of("one", {"a": 1, "b": 2})) == {
        "metadata": {"total_size": 3}, "weight_map": {"a": "one", "b": "one"},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": {}}}'])
def test_no_indexes(text: str) -> None:
    with pytest.raises(BadSource, match=f"{INDEX} has no readable weight_map"):
        shards(text)


@pytest.mark.parametrize(("name", "words"), [("../a", "not inside the folder"), (5, "no readable weight_map")])
def test_shards_outside_the_folder(name: Any, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        shards(json.dumps({"weight_map": {"a": name}}))


@pytest.mark.parametrize("text", ["{", "[]", "1", "[" * 100_000])
def test_no_json_objects(text: str) -> None:
    with pytest.raises(BadSource, match="a.json"):
        jsontext.parse(text, "a.json")


def test_json_is_indented_as_before_or_by_2() -> None:
    assert jsontext.dump({"a": {"b": "\u00e9"}}) == '{\n  "a": {\n    "b": "\u00e9"\n  }\n}\n'
    assert jsontext.dump({"a": 1}, like='{\n\t"b": 2}') == '{\n\t"a": 1\n}\n'
    assert jsontext.dump({"a": 1}, like='{\r\n   "b": 2}') == '{\n   "a": 1\n}\n'


def test_lists_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")
    np.save(tmp_path / "a.npy", np.array([[1.0], [2.0]], np.float16))
    assert (
        read_lists(tmp_path / "a.json") == read_lists(tmp_path / "a.npy") == {"inv_freq": [1, 2], "long_factor": [1, 2]}
    )
    save_file({"x": np.array([1.0, 2.0], np.float32)}, tmp_path / "a.safetensors")
    assert read_lists(tmp_path / "a.safetensors") == {"x": [1.0, 2.0]}
    (tmp_path / "b.json").write_text('{"short_factor": [1], "long_factor": [2], "note": "x"}')
    assert read_lists(tmp_path / "b.json") == {"short_factor": [1], "long_factor": [2]}
    np.save(tmp_path / "pickle.npy", np.array([object()]), allow_pickle=True)
    for name, text in {"c.json": "{}", "d.json": "5", "e.json": "["}.items():
        (tmp_path / name).write_text(text)
    for name in ("c.json", "d.json", "e.json", "absent.json", "pickle.npy"):
        with pytest.raises(UsageError, match=name):
            read_lists(tmp_path / name)


def test_templates_want_every_value() -> None:
    import jinja2

    with pytest.raises(jinja2.TemplateNotFound):
        render("absent")
    names = sorted(path.name for path in (Path(copying.__file__).parents[2] / "templates").iterdir() if path.is_file())
    with pytest.raises(jinja2.UndefinedError):
        render(next(name for name in names if "card" in name or "report" in name))


@pytest.mark.parametrize("dtype", BITS)
def test_the_types_are_those_of_safetensors(tmp_path: Path, dtype: str) -> None:
    """Eight numbers take as many bytes as one has bits; the reference implementation refuses any other size."""
    for size in (BITS[dtype] - 1, BITS[dtype], BITS[dtype] + 1):
        path = odd(tmp_path / "x", {"a": entry(dtype, [8], 0, size)}, bytes(size))
        if size == BITS[dtype]:
            assert deserialize(path.read_bytes())[0][1]["dtype"] == dtype
            assert read_header(path).tensors["a"].dtype == dtype
            continue
        with pytest.raises(SafetensorError):
            deserialize(path.read_bytes())
        with pytest.raises(BadSource):
            read_header(path)
