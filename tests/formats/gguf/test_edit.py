"""Edited files: other keys and tensors, read by gguf-py, and where a header puts them: by hand, in
bytes.
"""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf.edit import (
    RESERVED,
    Change,
    Edit,
    Layout,
    RewrittenHeader,
    deinterleave,
    interleave,
    new_size,
    rewrite,
    write_new,
    write_shards,
)
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import (
    GgufHeader,
    GgufValue,
    TensorInfo,
    f32,
    read_header,
    string,
    u32,
)
from ropeconv.rope.errors import RopeconvError

from ...support.gguf_files import contents, write

F32, F16 = 0, 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf")


def written(path: Path, edit: Edit) -> Path:
    out = path.with_name("out.gguf")
    file = GgufFile.open(path)
    done = list[int]()
    write_new(file, 0, edit, out, done.append)
    assert out.stat().st_size == new_size(file.header, edit)
    added = sum(map(len, edit.added.values()))
    new_header = rewrite(file.header, edit)
    kept = sum(length for _, _, length in new_header.moves(file.header))
    assert sum(done) == len(new_header.bytes_with_reserve(file.header.data_start)) + kept + added
    return out


def test_keys_are_set_and_dropped_and_no_tensor_changes(path: Path) -> None:
    edit = Edit(
        {"llama.context_length": u32(4096), "llama.new": string("new")},
        frozenset({"llama.rope.freq_base"}),
    )
    out = written(path, edit)
    before = gguf.GGUFReader(path).fields
    fields = gguf.GGUFReader(out).fields
    assert fields["llama.context_length"].contents() == 4096
    assert fields["llama.new"].contents() == "new"
    assert "llama.rope.freq_base" not in fields
    assert fields["tokenizer.ggml.tokens"].contents() == before["tokenizer.ggml.tokens"].contents()
    assert contents(out) == contents(path)


def test_a_tensor_is_appended_one_removed_and_one_rewritten_piece_by_piece(path: Path) -> None:
    new = np.arange(32, dtype=np.float32)
    sizes = list[int]()

    def negative(old: bytes) -> bytes:
        sizes.append(len(old))
        return (-np.frombuffer(old, "<f4")).tobytes()

    changes = {"output_norm.weight": Change(48, negative)}
    added = {"rope_freqs.weight": new.tobytes()}
    removed = frozenset({"blk.0.attn_q.weight"})
    out = written(path, Edit(changes=changes, added=added, removed=removed))
    before = contents(path)
    after = contents(out)
    del before["blk.0.attn_q.weight"]
    assert sizes == [48] * 10 + [40], "the last one is shorter"
    assert after.pop("rope_freqs.weight") == new.tobytes()
    assert (
        after.pop("output_norm.weight")
        == (-np.frombuffer(before.pop("output_norm.weight"), "<f4")).tobytes()
    )
    assert after == before


def test_a_file_of_version_2_is_written_as_3_and_can_be_laid_out_as_2_again(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4] + struct.pack("<I", 2) + data[8:])
    header = GgufFile.open(path).header
    out = written(path, Edit())
    assert read_header(out).version == 3
    assert contents(out) == contents(path)
    tail = header.size - header.data_start - header.data_size
    exact = Edit(base=header.values, layout=Layout(2, header.data_start, tail))
    write_new(GgufFile.open(out), 0, exact, path.with_name("back.gguf"))
    assert path.with_name("back.gguf").read_bytes() == path.read_bytes()
    with pytest.raises(BadSource, match="does not fit"):
        rewrite(read_header(out), exact).bytes_as_before(
            Layout(3, bare_size(rewrite(header, Edit())) - 1, 0)
        )
    assert new_size(GgufFile.open(out).header, exact) == path.stat().st_size


def test_in_a_later_shard_tensors_change_and_keys_do_not(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", split=2)
    file = GgufFile.open(min(tmp_path.glob("m-*.gguf")))
    out = tmp_path / "out.gguf"
    zeros = {"output_norm.weight": Change(4, lambda old: bytes(len(old)))}
    write_new(file, 1, Edit({"ignored": u32(1)}, changes=zeros), out)
    assert contents(out) == contents(file.paths[1]) | {"output_norm.weight": bytes(520)}
    assert read_header(out).values == file.headers[1].values


@pytest.mark.parametrize("removed", ["token_embd.weight", "output_norm.weight"])
def test_copies_of_shards_replace_a_tensor_wherever_it_is(tmp_path: Path, removed: str) -> None:
    """The tensor is in the first shard, or in the last one; new tensors are in the first."""
    write(tmp_path / "m.gguf", split=2)
    file = GgufFile.open(min(tmp_path.glob("m-*.gguf")))
    folder = tmp_path / "copies"
    folder.mkdir()
    new = np.arange(32, dtype=np.float32).tobytes()

    edit = Edit({"llama.context_length": u32(4096)}, added={removed: new, "rope_freqs.weight": new})
    copy = GgufFile.open(write_shards(file, replace(edit, removed=frozenset({removed})), folder))
    assert [path.name for path in copy.paths] == [path.name for path in file.paths]
    assert copy.tensors.keys() == file.tensors.keys() | {"rope_freqs.weight"}
    assert copy.get("llama.context_length") == 4096
    expected = contents(file.paths[0]) | contents(file.paths[1])
    expected |= {removed: new, "rope_freqs.weight": new}
    assert contents(copy.paths[0]) | contents(copy.paths[1]) == expected
    assert removed not in contents(copy.paths[1])
    for header in copy.headers:
        assert header.get(COUNT) == len(copy.tensors)


@pytest.mark.parametrize("make", [lambda: u32(1 << 32), lambda: u32(-1), lambda: f32(1e39)])
def test_numbers_that_do_not_fit_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(RopeconvError, match="32 bits"):
        make()


# Places of tensors


def header(
    *sizes: int, alignment: int = 32, values: dict[str, GgufValue] | None = None
) -> GgufHeader:
    """A header of vectors of bytes (I8), one behind the other."""
    tensors = {}
    at = 0
    for number, size in enumerate(sizes):
        tensors[f"t{number}"] = TensorInfo(f"t{number}", (size,), 24, at, size)
        at += -(-size // alignment) * alignment
    keys = {"general.architecture": string("llama"), **(values or {})}
    return GgufHeader(3, keys, tensors, alignment, 1024, 1024 + at)


@pytest.mark.parametrize(
    ("before", "removed", "added", "offsets", "moves"),
    [
        (
            header(33, 32),
            "",
            {"a": 8, "b": 64, "c": 4},
            {"t0": 0, "t1": 64, "a": 96, "b": 128, "c": 192},
            [(0, 0, 96)],
        ),
        (header(33, 30), "", {}, {"t0": 0, "t1": 64}, [(0, 0, 94)]),
        (header(33, 30), "", {"a": 8}, {"t0": 0, "t1": 64, "a": 96}, [(0, 0, 94)]),
        (
            header(33, 30, alignment=128),
            "",
            {"a": 8},
            {"t0": 0, "t1": 128, "a": 256},
            [(0, 0, 158)],
        ),
        (header(), "", {}, {}, []),
        (header(), "", {"a": 8}, {"a": 0}, []),
        (header(33, 32, 10), "t2", {}, {"t0": 0, "t1": 64}, [(0, 0, 96)]),
        # no gap is left, and two tensors move with the padding between them
        (
            header(33, 32, 10, 64),
            "t1",
            {"a": 4},
            {"t0": 0, "t2": 64, "t3": 96, "a": 160},
            [(0, 0, 33), (96, 64, 96)],
        ),
        (
            header(32, 32),
            "t1",
            {"t1": 8},
            {"t0": 0, "t1": 32},
            [(0, 0, 32)],
        ),  # added again, which is not copied
    ],
)
def test_new_tensors_go_last_each_at_the_next_multiple_of_the_alignment(
    before: GgufHeader,
    removed: str,
    added: dict[str, int],
    offsets: dict[str, int],
    moves: list[tuple[int, int, int]],
) -> None:
    """What stays is copied in runs, each from a place, to a place, and of a length."""
    edit = Edit(
        removed=frozenset({removed}), added={name: bytes(size) for name, size in added.items()}
    )
    new_header = rewrite(before, edit)
    assert {name: info.offset for name, info in new_header.tensors.items()} == offsets
    assert new_header.moves(before) == moves
    assert new_header.kept_size == max((new + length for _, new, length in moves), default=0)
    assert new_header.data_size == max(
        (offsets[name] + size for name, size in added.items()), default=new_header.kept_size
    )


# Keys


def test_another_architecture_renames_its_own_keys_only() -> None:
    known = header(
        values={"llama.block_count": u32(2), "llamas": u32(3), "tokenizer.llama.x": u32(4)}
    )
    values = rewrite(known, Edit(arch="mistral3")).values
    assert list(values) == [
        "general.architecture",
        "mistral3.block_count",
        "llamas",
        "tokenizer.llama.x",
    ]
    assert values["general.architecture"].decode() == "mistral3"


TWO_MORE = Edit(added={"a": bytes(4), "b": bytes(4)})
COUNT = "split.tensors.count"


@pytest.mark.parametrize(
    ("kind", "code", "most"),
    [(1, "b", 125), (3, "h", (1 << 15) - 3), (5, "i", (1 << 31) - 3), (4, "I", (1 << 31) - 3)],
)
def test_the_count_of_a_split_model_grows_to_what_its_type_holds(
    kind: int, code: str, most: int
) -> None:
    """The largest signed number of its bytes, also where it has no sign."""

    def counted(value: int) -> GgufHeader:
        return header(32, values={COUNT: GgufValue(kind, struct.pack(f"<{code}", value))})

    for count in (0, most):
        assert rewrite(counted(count), TWO_MORE).values[COUNT] == GgufValue(
            kind, struct.pack(f"<{code}", count + 2)
        )
        assert rewrite(counted(count), Edit()).values[COUNT].decode() == count
    with pytest.raises(BadSource, match=rf"{COUNT} = "):
        rewrite(counted(most + 1), TWO_MORE)
    assert COUNT not in rewrite(header(32), TWO_MORE).values


def test_the_count_of_a_split_model_falls_by_the_removed_tensors_of_the_shard(path: Path) -> None:
    known = read_header(path)
    count = GgufValue(5, struct.pack("<i", 10))  # 10 tensors in all shards
    known = replace(known, values={**known.values, COUNT: count})
    removed = frozenset({"output_norm.weight", "a tensor of another shard"})
    for edit, expected in (
        (Edit(removed=removed), 9),
        (replace(TWO_MORE, removed=removed), 11),
        (Edit(added={"output_norm.weight": bytes(4)}, removed=removed), 10),
        (Edit(base=known.values, removed=removed), 9),
    ):
        assert rewrite(known, edit).values[COUNT].decode() == expected


# Headers and their reserve


def bare_size(new_header: RewrittenHeader) -> int:
    """Bytes of a header by the specification of GGUF, without padding."""
    keys = sum(
        8 + len(key.encode()) + 4 + len(value.raw) for key, value in new_header.values.items()
    )
    infos = sum(
        8 + len(name.encode()) + 4 + 8 * len(info.shape) + 4 + 8
        for name, info in new_header.tensors.items()
    )
    return 24 + keys + infos


OVERHEAD = 8 + len(RESERVED) + 4 + 8
"""Bytes of the key of the reserve without its spaces."""


@pytest.mark.parametrize("letters", range(0, 64, 5))
def test_a_header_fills_its_place_with_padding_or_a_reserve_and_between_them_nothing_fits(
    letters: int,
) -> None:
    """A gap below the alignment is padding; one that holds the key of the reserve is filled by it;
    others cannot be.
    """
    new_header = rewrite(header(32), Edit({"k": string("x" * letters)}))
    bare = bare_size(new_header)
    first = -(-bare // 32) * 32
    assert new_header.plain() == new_header.bytes_of_length(first)
    assert new_header.bytes_of_length(first - 32) is None
    assert new_header.bytes_of_length(first + 1) is None
    for start in range(first, bare + 200, 32):
        laid = new_header.bytes_of_length(start)
        gap = start - bare
        if 32 <= gap < OVERHEAD:
            assert laid is None
            continue
        assert laid is not None
        assert len(laid) == start
        if gap < 32:
            assert laid[bare:] == bytes(gap)
        else:
            assert struct.pack("<Q", gap - OVERHEAD) + b" " * (gap - OVERHEAD) in laid
        assert (RESERVED.encode() in laid) is (gap >= 32)


# Edits after edits


@pytest.mark.parametrize(
    ("shape", "kind", "code", "head_dim", "order"),
    [
        ((3, 8), F32, "<f4", 4, [0, 2, 1, 3, 4, 6, 5, 7]),
        ((3, 6), F32, "<f4", 6, [0, 3, 1, 4, 2, 5]),
        ((8,), F16, "<f2", 4, [0, 2, 1, 3, 4, 6, 5, 7]),
    ],
)
def test_rows_reordered_by_head(
    shape: tuple[int, ...], kind: int, code: str, head_dim: int, order: list[int]
) -> None:
    rows = np.arange(np.prod(shape), dtype=code).reshape(shape[::-1])
    info = TensorInfo("q", shape, kind, 0, rows.nbytes)
    there = interleave(info, head_dim)
    back = deinterleave(info, head_dim)
    assert (there.unit, there.interleaved, back.interleaved) == (
        head_dim * rows[0].nbytes,
        head_dim,
        0,
    )
    assert there.whole(rows.tobytes()) == rows[order].tobytes()
    assert back.whole(rows[order].tobytes()) == rows.tobytes()


def test_two_edits_as_one_change_a_tensor_by_both_and_take_the_later_architecture() -> None:
    def plus(name: str, number: int) -> dict[str, Change]:
        return {name: Change(1, lambda old: bytes(byte + number for byte in old))}

    first = Edit(
        {"a": u32(1), "b": u32(2)},
        arch="llama",
        changes=plus("both", 1) | plus("first", 2),
        base={},
    )
    later = Edit({"a": u32(3)}, dropped=frozenset({"b"}), changes=plus("both", 10))
    both = first.then(later)
    assert {name: change.whole(b"\0\5") for name, change in both.changes.items()} == {
        "both": b"\x0b\x10",
        "first": b"\2\7",
    }
    assert (both.values, both.base) == (later.values, {})
    merged = first.merge(later)
    assert (merged.values, merged.dropped, merged.arch) == ({"a": u32(3)}, {"b"}, "llama")
    assert first.merge(Edit(arch="qwen2")).arch == "qwen2"
