"""Headers just at, and just beyond, what a file can hold and what llama.cpp takes; bytes are written by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import read_header

ARCH = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5) + b"llama"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def info(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file(
    path: Path, keys: tuple[bytes, ...] = (), infos: tuple[bytes, ...] = (), data: int = 0, alignment: int = 32
) -> Path:
    """A file of version 3 with these keys behind the architecture, these infos, and zeros for data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), 1 + len(keys)) + ARCH + b"".join(keys) + b"".join(infos)
    path.write_bytes(head + bytes(-len(head) % alignment) + bytes(data))
    return path


def refused(path: Path, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        read_header(path)


def key(kind: int, value: bytes, name: bytes = b"k") -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def test_values_that_go_beyond_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    whole = file(path, (key(9, struct.pack("<IQ", 4, 3) + bytes(12)),))
    assert read_header(whole).get("k") == [0, 0, 0]
    refused(file(path, (key(9, struct.pack("<IQ", 4, 30) + bytes(12)),)), "is cut off within 'k', or its length")
    refused(file(path, (key(9, struct.pack("<IQ", 8, 30) + bytes(12)),)), "claims 30 strings under 'k'")
    refused(file(path, (key(9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 1000)),)), "is cut off within 'k'")
    refused(file(path, (key(8, struct.pack("<Q", 1000)),)), "is cut off within 'k'")
    refused(file(path, (key(13, bytes(4)),)), "a value of unknown type 13 under 'k'")
    refused(file(path, (key(9, struct.pack("<IQ", 9, 1) + bytes(12)),)), "an array of type array under 'k'")
    refused(file(path, (key(9, struct.pack("<IQ", 13, 1) + bytes(12)),)), "an array of type 13 under 'k'")
    refused(file(path, (key(4, bytes(4)), key(4, bytes(4)))), "has the key 'k' twice")


def test_strings_that_end_where_the_file_ends(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + ARCH
    for count, words in ((3, ""), (4, "claims 4 strings under 'k'")):
        (tmp_path / "x").write_bytes(head + key(9, struct.pack("<IQ", 8, count) + bytes(24)))
        if words:
            refused(tmp_path / "x", words)
        else:
            assert read_header(tmp_path / "x").get("k") == ["", "", ""]


def test_numbers_of_every_type(tmp_path: Path) -> None:
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    keys = tuple(key(kind, struct.pack("<" + code, 7), b"k%d" % kind) for kind, code in formats.items())
    header = read_header(file(tmp_path / "x", (*keys, key(7, b"\1", b"k7"))))
    assert [header.get(f"k{kind}") for kind in formats] == [7] * len(formats)
    assert header.get("k7") is True


def test_counts_and_lengths_of_names(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for tensors, keys, words in (
        (0, 1 << 40, "claims 1099511627776 keys"),
        (1 << 40, 0, "claims 1099511627776 tensors"),
    ):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + bytes(64))
        refused(path, words)
    path.write_bytes(bytes(23))
    refused(path, "23 bytes, too short for GGUF")
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    assert read_header(path).values == {}
    long = b"x" * 0xFFFF
    assert long.decode() in read_header(file(path, (key(4, bytes(4), long),))).values
    refused(file(path, (key(4, bytes(4), long + b"x"),)), "has a key of 65536 bytes")
    refused(file(path, (key(4, bytes(4), b"\xff"),)), "a key that is not UTF-8")
    assert read_header(file(path, (), (info(b"x" * 63, (1,)),), 4)).tensors
    refused(file(path, (), (info(b"x" * 64, (1,)),), 4), "tensor name of 64 letters, and 63 are allowed")
    refused(file(path, (), (info("\u00e9".encode() * 32, (1,)),), 4), "and 63 are allowed")


@pytest.mark.parametrize("magic", [b"lmgg", b"fmgg", b"tjgg", b"algg"])
def test_older_formats(tmp_path: Path, magic: bytes) -> None:
    (tmp_path / "x").write_bytes(magic + bytes(30))
    refused(tmp_path / "x", "an older format; convert the model again")
    (tmp_path / "x").write_bytes(b"PK\3\4" + bytes(30))
    refused(tmp_path / "x", r"not with b'GGUF'; download it again")


def test_alignments(tmp_path: Path) -> None:
    path, name = tmp_path / "x", b"general.alignment"
    for alignment in (1, 2, 64):
        found = read_header(file(path, (key(4, struct.pack("<I", alignment), name),), (), 0, alignment))
        assert (found.alignment, found.data_start % alignment) == (alignment, 0)
    assert read_header(file(path)).alignment == 32
    for kind, value in ((4, struct.pack("<I", 0)), (4, struct.pack("<I", 24)), (10, struct.pack("<Q", 32))):
        refused(file(path, (key(kind, value, name),)), "which must be a power of two")


def test_shapes_places_and_sizes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    found = read_header(file(path, (), (info(b"a", (3, 2)), info(b"b", (64,), 8, 32), info(b"c", (), 0, 128)), 132))
    assert [(one.offset, one.size, one.shape) for one in found.tensors.values()] == [
        (0, 24, (3, 2)), (32, 68, (64,)), (128, 4, (1,)),
    ]  # fmt: skip
    assert found.data_size == 132
    assert read_header(file(path, (), (info(b"a", (1, 1, 1, 1)),), 4)).tensors["a"].size == 4
    refused(file(path, (), (info(b"a", (1, 1, 1, 1, 1)),), 4), "5 dimensions, and 4 are allowed")
    refused(file(path, (), (info(b"a", (33,), 8),), 40), r"the shape \(33,\), impossible for Q8_0")
    refused(file(path, (), (info(b"a", (1 << 31, 1 << 31)),), 4), "impossible for F32")
    refused(file(path, (), (info(b"a", (1,), 4),), 4), "the unknown tensor type 4")
    refused(file(path, (), (info(b"a", (8,)), info(b"a", (8,), 0, 32)), 64), "has the tensor 'a' twice")
    for offset in (0, 64):
        refused(
            file(path, (), (info(b"a", (8,)), info(b"b", (8,), 0, offset)), 96), f"at offset {offset} and not at 32"
        )
    start = read_header(file(path, (), (info(b"a", (8,)),), 32)).data_start
    refused(file(path, (), (info(b"a", (8,)),), 31), f"ends at {start + 31} bytes, and a needs {start + 32}")


def test_whole_numbers_of_a_header(tmp_path: Path) -> None:
    header = read_header(
        file(tmp_path / "x", (key(4, struct.pack("<I", 7)), key(7, b"\1", b"b"), key(6, bytes(4), b"f")))
    )
    assert (header.whole("k"), header.whole("absent"), header.whole("absent", 5)) == (7, 0, 5)
    assert (header.get("absent"), header.get("absent", 3)) == (None, 3)
    for name in ("b", "f"):
        with pytest.raises(BadSource, match="where a whole number belongs"):
            header.whole(name)


def test_a_data_section_may_be_missing_where_nothing_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + ARCH)
    found = read_header(path)
    assert found.data_start == found.size == path.stat().st_size
    assert found.data_size == 0
