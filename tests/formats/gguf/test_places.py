"""Where an edited header puts keys, tensors and its reserve: by hand, in bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import Added, Change, Edit, GgufFile, Header, TensorInfo, read_header, rewrite, string, u32
from ropeconv.formats.gguf.edit import RESERVED, Layout, Rewritten
from ropeconv.formats.gguf.header import padded
from ropeconv.formats.gguf.interleave import deinterleave, interleave
from ropeconv.formats.gguf.values import Value, array, boolean, bools, f32, f32_array, i32_array, strings
from ropeconv.formats.gguf.write import new_size, write_new

from ...support.gguf_files import contents, write

F32, F16 = 0, 1
ROOM, PAGE = 4096, 65536  # bytes of the reserve at least, and of what the kernel copies at once


def header(*sizes: int, alignment: int = 32, values: dict[str, Value] | None = None) -> Header:
    """A header of vectors of bytes (I8), one behind the other."""
    tensors, at = {}, 0
    for number, size in enumerate(sizes):
        tensors[f"t{number}"] = TensorInfo(f"t{number}", (size,), 24, at, size)
        at += -(-size // alignment) * alignment
    keys = {"general.architecture": string("llama"), **(values or {})}
    return Header(3, keys, tensors, alignment, 1024, 1024 + at)


def vector(name: str, size: int) -> Added:
    return Added(name, (size,), 24, lambda: iter((bytes(size),)))


def offsets(made: Rewritten) -> dict[str, int]:
    return {name: info.offset for name, info in made.tensors.items()}


@pytest.mark.parametrize(
    ("size", "alignment", "expected"), [(0, 32, 0), (1, 32, 32), (31, 32, 32), (32, 32, 32), (33, 32, 64), (7, 1, 7)]
)
def test_sizes_are_padded_to_the_alignment(size: int, alignment: int, expected: int) -> None:
    assert padded(size, alignment) == expected


def test_new_tensors_go_last_each_at_the_next_multiple_of_the_alignment() -> None:
    made = rewrite(header(33, 32), Edit(added=(vector("a", 5), vector("b", 64), vector("c", 1))))
    assert offsets(made) == {"t0": 0, "t1": 64, "a": 96, "b": 128, "c": 192}
    assert (made.kept, made.data_size) == (96, 193)
    assert rewrite(header(33, 30), Edit()).kept == 94
    assert rewrite(header(33, 30), Edit(added=(vector("a", 5),))).tensors["a"].offset == 96
    wide = rewrite(header(33, 30, alignment=128), Edit(added=(vector("a", 5),)))
    assert offsets(wide) == {"t0": 0, "t1": 128, "a": 256}


def test_a_file_without_tensors() -> None:
    made = rewrite(header(), Edit())
    assert (made.kept, made.data_size, made.moves(header())) == (0, 0, [])
    assert offsets(rewrite(header(), Edit(added=(vector("a", 5),)))) == {"a": 0}


def test_what_is_removed_leaves_no_gap() -> None:
    before = header(33, 32, 10, 64)
    made = rewrite(before, Edit(removed=frozenset({"t1"}), added=(vector("a", 1),)))
    assert offsets(made) == {"t0": 0, "t2": 64, "t3": 96, "a": 160}
    assert made.kept == 160
    assert made.moves(before) == [(0, 0, 33), (96, 64, 96)]  # t2 and t3 are one run, with the padding between them


def test_what_is_not_moved_is_one_run() -> None:
    before = header(33, 32, 10)
    assert rewrite(before, Edit(added=(vector("a", 1),))).moves(before) == [(0, 0, 106)]
    assert rewrite(before, Edit(removed=frozenset({"t2"}))).moves(before) == [(0, 0, 96)]


def test_a_tensor_of_the_same_name_that_is_removed_and_added_is_not_copied() -> None:
    before = header(32, 32)
    made = rewrite(before, Edit(removed=frozenset({"t1"}), added=(vector("t1", 7),)))
    assert offsets(made) == {"t0": 0, "t1": 32}
    assert made.moves(before) == [(0, 0, 32)]


def test_the_count_of_a_split_model_grows_with_the_tensors() -> None:
    counted = header(32, values={"split.tensors.count": Value(5, struct.pack("<i", 291))})
    edit = Edit(added=(vector("a", 1), vector("b", 1)))
    assert rewrite(counted, edit).values["split.tensors.count"] == Value(5, struct.pack("<i", 293))
    assert rewrite(counted, Edit()).values["split.tensors.count"].decode() == 291
    assert "split.tensors.count" not in rewrite(header(32), edit).values


@pytest.mark.parametrize(
    ("kind", "code", "found"),
    [(1, "b", 125), (1, "b", -2), (3, "h", (1 << 15) - 3), (5, "i", (1 << 31) - 3), (4, "I", (1 << 31) - 3)],
)
def test_a_count_grows_to_what_its_type_holds(kind: int, code: str, found: int) -> None:
    """The largest signed number of its bytes, also where it has no sign; and not below 0."""
    edit = Edit(added=(vector("a", 1), vector("b", 1)))

    def counted(value: int) -> Header:
        return header(32, values={"split.tensors.count": Value(kind, struct.pack(f"<{code}", value))})

    assert rewrite(counted(found), edit).values["split.tensors.count"].decode() == found + 2
    with pytest.raises(BadSource, match=r"split.tensors.count = .* fetch the file again"):
        rewrite(counted(found + 1 if found > 0 else found - 1), edit)


@pytest.mark.parametrize(
    "value",
    [f32(291.0), boolean(True), f32_array([1.0]), string("291"), Value(5, struct.pack("<i", -5)), Value(1, b"~")],
)
def test_a_count_of_a_split_model_that_is_none_is_refused(value: Value) -> None:
    counted = header(32, values={"split.tensors.count": value})
    with pytest.raises(BadSource, match=r"split.tensors.count = .* fetch the file again"):
        rewrite(counted, Edit(added=(vector("a", 1), vector("b", 1))))


def test_another_architecture_renames_its_own_keys_only() -> None:
    known = header(values={"llama.block_count": u32(2), "llamas": u32(3), "tokenizer.llama.x": u32(4)})
    values = rewrite(known, Edit(arch="mistral3")).values
    assert list(values) == ["general.architecture", "mistral3.block_count", "llamas", "tokenizer.llama.x"]
    assert values["general.architecture"].decode() == "mistral3"


def test_dropping_comes_after_renaming_and_setting_last() -> None:
    known = header(values={"llama.a": u32(1), "llama.b": u32(2), RESERVED: string("  ")})
    edit = Edit({"new.b": u32(5)}, frozenset({"new.a", "new.b", "absent"}), "new")
    assert rewrite(known, edit).values == {"general.architecture": string("new"), "new.b": u32(5)}
    based = Edit(base={"general.architecture": string("llama"), RESERVED: string(" ")})
    assert list(rewrite(known, based).values) == ["general.architecture"]
    assert RESERVED in rewrite(known, Edit(base=known.values, layout=Layout(3, 1024, 0))).values


def bare_size(made: Rewritten) -> int:
    """Bytes of a header by the specification of GGUF, without padding."""
    keys = sum(8 + len(key.encode()) + 4 + len(value.raw) for key, value in made.values.items())
    infos = sum(8 + len(name.encode()) + 4 + 8 * len(info.shape) + 4 + 8 for name, info in made.tensors.items())
    return 24 + keys + infos


OVERHEAD = 8 + len(RESERVED) + 4 + 8
"""Bytes of the key of the reserve without its spaces."""


def test_a_header_fills_its_place_with_padding_or_a_reserve() -> None:
    made = rewrite(header(32), Edit())
    bare = bare_size(made)
    start = -(-bare // 32) * 32
    laid = made.layout(start)
    assert laid is not None
    assert len(laid) == start == len(made.plain())
    assert laid == made.plain()
    assert laid[bare:] == bytes(start - bare)
    assert made.layout(start - 32) is None
    assert made.layout(start + 1) is None


@pytest.mark.parametrize("letters", range(64))
def test_between_padding_and_a_reserve_nothing_fits(letters: int) -> None:
    """A gap below the alignment is padding; one that holds the key of the reserve is filled by it; others cannot be."""
    made = rewrite(header(32), Edit({"k": string("x" * letters)}))
    bare = bare_size(made)
    for start in range(-(-bare // 32) * 32, bare + 200, 32):
        laid, gap = made.layout(start), start - bare
        if gap < 32:
            assert laid is not None
            assert RESERVED.encode() not in laid
        elif gap < OVERHEAD:
            assert laid is None
        else:
            assert laid is not None
            spaces = gap - OVERHEAD
            assert struct.pack("<Q", spaces) + b" " * spaces in laid
            assert RESERVED.encode() in laid
        assert laid is None or len(laid) == start


@pytest.mark.parametrize("before", [0, 1024, 65536, 70016, 1 << 20])
def test_a_new_header_has_room_and_moves_the_data_by_whole_pages(before: int) -> None:
    made = rewrite(header(32), Edit({"k": string("x" * 5000)}))
    laid = made.place(before)
    assert (len(laid) - before) % PAGE == 0
    assert len(laid) - bare_size(made) >= ROOM
    assert len(laid) - PAGE - bare_size(made) < ROOM or len(laid) == before


def test_a_header_just_as_long_as_its_place_with_its_room_needs_no_other_page() -> None:
    made = rewrite(header(32), Edit())
    filler = PAGE - ROOM - bare_size(made) - 8 - 1 - 4 - 8
    exact = rewrite(header(32), Edit({"k": string("x" * filler)}))
    assert bare_size(exact) + ROOM == PAGE
    assert len(exact.place(0)) == PAGE
    assert len(rewrite(header(32), Edit({"k": string("x" * (filler + 1))})).place(0)) == 2 * PAGE


def test_data_that_was_not_aligned_goes_to_the_next_place_that_is() -> None:
    """Files of other writers may have data where no multiple of the alignment is; 64 KiB further is none either."""
    laid = rewrite(header(32), Edit()).place(1001)
    assert len(laid) % 32 == 0
    assert 0 < len(laid) - (1001 + PAGE) < 32


def test_an_earlier_header_is_laid_out_byte_for_byte() -> None:
    made = rewrite(header(32), Edit())
    bare = bare_size(made)
    for version in (2, 3):
        laid = made.exact(Layout(version, bare + 10, 0))
        assert laid[:8] == b"GGUF" + struct.pack("<I", version)
        assert laid[bare:] == bytes(10)
        assert len(laid) == bare + 10
    assert len(made.exact(Layout(3, bare, 0))) == bare
    with pytest.raises(BadSource, match="does not fit"):
        made.exact(Layout(3, bare - 1, 0))


def test_version_2_is_read_and_later_and_earlier_ones_are_not(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    data = path.read_bytes()
    for version in (2, 3):
        path.write_bytes(data[:4] + struct.pack("<I", version) + data[8:])
        found = read_header(path)
        assert found.version == version
        assert found.get("llama.block_count") == gguf.GGUFReader(path).fields["llama.block_count"].contents()
    for version in (0x10000, 1, 4):
        path.write_bytes(data[:4] + struct.pack("<I", version) + data[8:])
        with pytest.raises(BadSource, match="big-endian" if version == 0x10000 else f"version {version}"):
            read_header(path)


def test_a_file_of_version_2_is_written_as_3_and_can_be_laid_out_as_2_again(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    data = path.read_bytes()
    path.write_bytes(data[:4] + struct.pack("<I", 2) + data[8:])
    file, out = GgufFile.open(path), tmp_path / "out.gguf"
    write_new(file, 0, Edit(), out)
    assert read_header(out).version == 3
    assert contents(out) == contents(path)
    tail = file.header.size - file.header.data_start - file.header.data_size
    exact = Edit(base=file.header.values, layout=Layout(2, file.header.data_start, tail))
    done: list[int] = []
    write_new(GgufFile.open(out), 0, exact, tmp_path / "back.gguf", done.append)
    assert (tmp_path / "back.gguf").read_bytes() == path.read_bytes()
    assert new_size(GgufFile.open(out).header, exact) == path.stat().st_size


def test_a_file_is_as_long_as_was_said_and_its_progress_adds_up(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    file, done = GgufFile.open(path), []
    edit = Edit(added=(Added.f32("rope_freqs.weight", bytes(128)),))
    write_new(file, 0, edit, tmp_path / "out.gguf", done.append)
    size = (tmp_path / "out.gguf").stat().st_size
    assert new_size(file.header, edit) == size
    made = rewrite(file.header, edit)
    assert sum(done) == len(made.place(file.header.data_start)) + file.header.data_size + 128
    assert made.tensors["rope_freqs.weight"] == TensorInfo(
        "rope_freqs.weight", (32,), F32, padded(file.header.data_size, 32), 128
    )


def test_a_change_of_several_units_is_applied_to_each() -> None:
    reverse = Change(2, lambda old: old[::-1])
    add = Change(4, lambda old: bytes(value + 1 for value in old))
    assert reverse.whole(b"abcde") == b"badce"
    both = reverse.then(add)
    assert both.unit == 4
    assert both.apply(b"abcd") == b"cbed"
    assert add.then(reverse).unit == 4
    assert add.then(reverse).apply(b"abcd") == b"cbed"
    assert both.interleaved == 0


def test_an_edit_after_one_that_takes_back() -> None:
    double = Change(1, lambda old: bytes(2 * value for value in old))
    more = Change(1, lambda old: bytes(value + 1 for value in old))
    back = Edit(base={"a": u32(1)}, changes={"x": more, "y": more}, removed=frozenset({"z"}))
    after = back.then(Edit({"b": u32(2)}, changes={"x": double, "w": double}, added=(vector("v", 1),)))
    assert (after.base, after.removed, after.values) == ({"a": u32(1)}, frozenset({"z"}), {"b": u32(2)})
    assert [item.name for item in after.added] == ["v"]
    assert {name: change.apply(b"\x03") for name, change in after.changes.items()} == {
        "x": b"\x08", "y": b"\x04", "w": b"\x06",
    }  # fmt: skip


def test_merged_edits_keep_both_sides() -> None:
    one, two = Change(1, lambda old: b"1"), Change(1, lambda old: b"2")
    first = Edit({"a": u32(1), "d": u32(1)}, frozenset({"c", "e"}), "one", {"x": one, "y": one}, (vector("v", 1),),
                 {"k": u32(1)}, frozenset({"z"}))  # fmt: skip
    both = first.merged(Edit({"c": u32(3)}, frozenset({"a"}), "", {"y": two}, (vector("w", 1),)))
    assert both.values == {"d": u32(1), "c": u32(3)}
    assert both.dropped == {"a", "e"}
    assert both.arch == "one"
    assert first.merged(Edit(arch="two")).arch == "two"
    assert (both.changes["x"].apply(b""), both.changes["y"].apply(b"")) == (b"1", b"2")
    assert [item.name for item in both.added] == ["v", "w"]
    assert (both.base, both.removed) == ({"k": u32(1)}, frozenset({"z"}))


def test_rows_are_reordered_within_each_head_as_numpy_does_it() -> None:
    """Two heads of 4 rows of 3 numbers: rows 0 2 1 3 by `interleave`, and back."""
    rows = np.arange(24, dtype="<f4").reshape(8, 3)
    info = TensorInfo("q", (3, 8), F32, 0, rows.nbytes)
    there = interleave(info, 4)
    assert (there.unit, there.interleaved) == (4 * 3 * 4, 4)
    moved = there.whole(rows.tobytes())
    np.testing.assert_array_equal(np.frombuffer(moved, "<f4").reshape(8, 3), rows[[0, 2, 1, 3, 4, 6, 5, 7]])
    assert deinterleave(info, 4).whole(moved) == rows.tobytes()
    assert deinterleave(info, 4).interleaved == 0
    six = interleave(TensorInfo("q", (3, 6), F32, 0, 72), 6).whole(rows[:6].tobytes())
    np.testing.assert_array_equal(np.frombuffer(six, "<f4").reshape(6, 3), rows[[0, 3, 1, 4, 2, 5]])
    back = deinterleave(TensorInfo("q", (3, 6), F32, 0, 72), 6).whole(six)
    assert back == rows[:6].tobytes()
    bias = np.arange(8, dtype="<f2")
    assert (
        interleave(TensorInfo("b", (8,), F16, 0, 16), 4).whole(bias.tobytes())
        == bias[[0, 2, 1, 3, 4, 6, 5, 7]].tobytes()
    )


def test_rows_of_quantised_types_are_whole_blocks() -> None:
    assert TensorInfo("q", (64, 4), 8, 0, 272).row_size == 68  # two blocks of 34 bytes
    assert TensorInfo("q", (64, 4), F16, 0, 512).row_size == 128


def test_values_as_gguf_py_writes_them(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "values.gguf", "llama")
    writer.add_array("bools", [True, False])
    writer.add_array("ints", [-1, 2])
    writer.add_array("floats", [0.5, 2.0])
    writer.add_array("texts", ["a", "\u00e9"])
    writer.add_string("text", "\u00e9")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    values = read_header(tmp_path / "values.gguf").values
    assert values["bools"] == bools([True, False])
    assert values["ints"] == i32_array([-1, 2])
    assert values["floats"] == f32_array([0.5, 2.0])
    assert values["texts"] == strings([b"a", "\u00e9".encode()])
    assert values["text"] == string("\u00e9")
    assert [values[key].count() for key in ("bools", "texts", "text")] == [2, 2, 1]
    assert values["texts"].decode() == ["a", "\u00e9"]
    assert array(10, [1]).raw == struct.pack("<IQQ", 10, 1, 1)
    assert (values["text"].type_name, values["ints"].type_name) == ("str", "array")


def test_tensors_are_read_in_pieces_of_any_size(tmp_path: Path) -> None:
    file = GgufFile.open(write(tmp_path / "model.gguf"))
    whole = contents(file.path)["output_norm.weight"]
    pieces = list(file.chunks("output_norm.weight", 100))
    assert [len(piece) for piece in pieces] == [100] * 5 + [20]
    assert b"".join(pieces) == whole == file.read("output_norm.weight")
    with file.path.open("r+b") as opened:
        opened.truncate(file.header.data_start + 10)
    with pytest.raises(BadSource, match="was cut off while it was read"):
        file.read("output_norm.weight")


def test_a_changed_tensor_is_rewritten_piece_by_piece_with_a_shorter_last_one(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    sizes: list[int] = []

    def negative(old: bytes) -> bytes:
        sizes.append(len(old))
        return (-np.frombuffer(old, "<f4")).tobytes()

    write_new(GgufFile.open(path), 0, Edit(changes={"output_norm.weight": Change(48, negative)}), tmp_path / "out.gguf")
    before, after = contents(path), contents(tmp_path / "out.gguf")
    assert sizes == [48] * 10 + [40]
    assert after.pop("output_norm.weight") == (-np.frombuffer(before.pop("output_norm.weight"), "<f4")).tobytes()
    assert after == before


def test_a_model_in_shards(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", split=2)
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    file = GgufFile.open(first)
    assert (file.paths, len(file.headers)) == ((first, second), 2)
    assert file.shard("token_embd.weight") == 0
    assert file.shard("output_norm.weight") == 1
    assert file.read("output_norm.weight") == contents(second)["output_norm.weight"]
    change = {"output_norm.weight": Change(4, lambda old: bytes(len(old)))}
    write_new(file, 1, Edit({"ignored": u32(1)}, changes=change), tmp_path / "out.gguf")
    assert contents(tmp_path / "out.gguf")["output_norm.weight"] == bytes(520)
    assert "ignored" not in read_header(tmp_path / "out.gguf").values
    with pytest.raises(BadSource, match="is shard 2 of a split model; give m-00001-of-00002.gguf"):
        GgufFile.open(second)
    first.rename(tmp_path / "other.gguf")
    with pytest.raises(BadSource, match="first of 2 shards, so it must be named .*-00001-of-00002.gguf"):
        GgufFile.open(tmp_path / "other.gguf")
    (tmp_path / "other.gguf").rename(first)
    second.rename(tmp_path / "gone")
    with pytest.raises(BadSource, match="m-00002-of-00002.gguf is missing"):
        GgufFile.open(first)
    second.write_bytes(first.read_bytes())
    with pytest.raises(BadSource, match="repeats the tensor"):
        GgufFile.open(first)


def test_shards_that_say_so_under_other_names(tmp_path: Path) -> None:
    """A file whose name is not that of a shard, and one whose name has another count than its keys."""
    third = write(tmp_path / "third.gguf", extra={"split.no": 2, "split.count": 3})
    with pytest.raises(BadSource, match="third.gguf is shard 3 of a split model; give the first one"):
        GgufFile.open(third)
    other = write(tmp_path / "m-00001-of-00003.gguf", extra={"split.no": 0, "split.count": 2})
    with pytest.raises(BadSource, match="is the first of 2 shards, so it must be named ...-00001-of-00002.gguf"):
        GgufFile.open(other)
    unsaid = write(tmp_path / "m-00002-of-00002.gguf")
    with pytest.raises(BadSource, match="is shard 2 of a split model; give m-00001-of-00002.gguf"):
        GgufFile.open(unsaid)
    one = write(tmp_path / "one.gguf", extra={"split.no": 0, "split.count": 1})
    assert GgufFile.open(one).paths == (one,)


def test_the_usual_type_is_that_of_most_matrices(tmp_path: Path) -> None:
    """Vectors do not count, of which there are more."""
    matrices = {f"m{n}": np.zeros((2, 32), np.float16) for n in range(2)} | {"m2": np.zeros((2, 32), np.float32)}
    vectors = {f"v{n}": np.zeros(32, np.float32) for n in range(4)}
    file = GgufFile.open(write(tmp_path / "m.gguf", tensors={**vectors, **matrices}))
    assert file.usual_type == F16
