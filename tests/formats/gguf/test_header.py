"""GGUF headers and files: what gguf-py writes is read back, and what is damaged or too large gets a
sentence.
"""

import resource
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import header
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import (
    MAX_ALIGNMENT,
    MAX_KEYS,
    MAX_TENSORS,
    MAX_VALUES,
    TYPES,
    GgufHeader,
    parse_header,
    read_header,
)

from ...support.extent import ALL
from ...support.gguf_files import contents, plain_tensors, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(
        tmp_path / "model.gguf",
        extra={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "flag": True},
    )


def test_values_and_tensors_are_those_that_gguf_py_wrote(path: Path) -> None:
    header = read_header(path)
    theirs = gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert header.get(name) == field.contents(), name
    assert header.data_start == theirs.data_offset
    for tensor in theirs.tensors:
        ours = header.tensors[tensor.name]
        assert (ours.shape, ours.type) == (
            tuple(int(n) for n in tensor.shape),
            int(tensor.tensor_type),
        )
        assert (header.data_start + ours.offset, ours.size) == (tensor.data_offset, tensor.n_bytes)
    assert GgufFile.open(path).read("token_embd.weight") == contents(path)["token_embd.weight"]


def test_the_types_are_those_of_llama_cpp() -> None:
    """Asked of the library itself."""
    import ctypes

    import llama_cpp

    library = ctypes.CDLL(str(next(Path(llama_cpp.__file__).parent.glob("lib/*ggml-base*"))))
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_name.restype = ctypes.c_char_p
    for number, kind in TYPES.items():
        assert library.ggml_type_name(number).decode().upper() == kind.name
        assert (library.ggml_blck_size(number), library.ggml_type_size(number)) == (
            kind.block,
            kind.size,
        )
    removed = [number for number in range(max(TYPES) + 1) if number not in TYPES]
    assert [library.ggml_type_size(number) for number in removed] == [0] * len(removed)


@pytest.mark.parametrize("stop", [24, 100, 5_000])
def test_a_header_of_which_only_the_beginning_is_there_asks_for_more(
    tmp_path: Path, stop: int
) -> None:
    """At most for all of the header, and is then what the file has."""
    path = write(tmp_path / "m.gguf", vocabulary=500)
    data = path.read_bytes()
    whole = read_header(path)
    parsed_header = None
    while parsed_header is None:
        try:
            parsed_header = parse_header(data[:stop], len(data), path.name)
        except header.MoreBytesNeeded as problem:
            known, stop = stop, problem.stop
            assert known < stop <= whole.data_start
    assert parsed_header == whole


# Damage


def test_a_file_cut_off_anywhere_gets_a_sentence(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    header = read_header(path)
    end = header.data_start + header.data_size
    for length in [
        *range(0, header.data_start, 7 if ALL else 31),
        *range(header.data_start, end, 5000),
        end - 1,
    ]:
        cut.write_bytes(data[:length])
        with pytest.raises(BadSource, match="download it again"):
            GgufFile.open(cut)


# Headers by hand, just at and just beyond what a file can hold, what llama.cpp takes, and what is
# read

ARCH = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5) + b"llama"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(kind: int, value: bytes, name: bytes = b"k") -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def values(kind: int, count: int, value: bytes, name: bytes = b"k") -> bytes:
    return key(9, struct.pack("<IQ", kind, count) + value, name)


def info(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def start(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def made(
    keys: bytes = b"",
    count: int = 1,
    infos: tuple[bytes, ...] = (),
    data: int = 0,
    alignment: int = 32,
) -> bytes:
    """A file of version 3 with these keys behind the architecture, these infos, and zeros for
    data.
    """
    head = start(len(infos), (1 if keys else 0) * count + 1) + ARCH + keys + b"".join(infos)
    return head + bytes(-len(head) % alignment) + bytes(data)


def tensors(*infos: bytes, data: int = 4) -> bytes:
    return made(infos=infos, data=data)


ALIGNMENT = b"general.alignment"
REFUSED: dict[str, tuple[bytes, str]] = {
    "too short": (bytes(23), "23 bytes, too short for GGUF"),
    "text": (b"x" * 100, "begins with"),
    "an older format": (b"lmgg" + bytes(30), "an older format; convert the model again"),
    "version 9": (start(0, 0, 9), "version 9, and 2 and 3 are supported; convert the model again$"),
    "big-endian": (start(0, 0, 0x03000000), "convert the model again on a little-endian machine$"),
    "a trillion keys": (start(0, 1 << 40) + bytes(64), "claims 1099511627776 keys"),
    "a trillion tensors": (start(1 << 40, 0) + bytes(64), "claims 1099511627776 tensors"),
    "too many keys": (
        start(0, MAX_KEYS + 1) + b"".join(key(0, b"\1", b"%07d" % n) for n in range(MAX_KEYS + 1)),
        "claims 16385 keys, and no model has more than 16384",
    ),
    "too many tensors": (
        start(MAX_TENSORS + 1, 0) + bytes(24 * (MAX_TENSORS + 1)),
        "claims 65537 tensors, and no model has more than 65536; ropeconv reads no more, so report",
    ),
    "a key of a terabyte": (start(0, 1) + struct.pack("<Q", 1 << 40) + bytes(64), "a key of"),
    "a key in Latin-1": (made(key(4, bytes(4), b"\xff")), "a key that is not UTF-8"),
    "a key twice": (made(key(4, bytes(4)) * 2, 2), "has the key 'k' twice"),
    "numbers beyond the file": (
        made(values(4, 30, bytes(12))),
        "is cut off within 'k', or its length",
    ),
    "strings beyond the file": (made(values(8, 30, bytes(12))), "claims 30 strings under 'k'"),
    "a string beyond the file": (made(key(8, struct.pack("<Q", 1000))), "is cut off within 'k'"),
    "an unknown type": (made(key(13, bytes(4))), "a value of unknown type 13 under 'k'"),
    "an array of arrays": (made(values(9, 1, bytes(12))), "an array of type array under 'k'"),
    **{
        f"2^62 of type {kind}": (
            start(0, 1) + values(kind, 1 << 62, bytes(64), b"t"),
            "within 't'|under 't'",
        )
        for kind in (0, 8, 12)
    },
    "alignment 24": (
        made(key(4, struct.pack("<I", 24), ALIGNMENT)),
        "which must be a power of two",
    ),
    "a large alignment": (
        made(key(4, struct.pack("<I", MAX_ALIGNMENT * 2), ALIGNMENT)),
        f"at most {MAX_ALIGNMENT}",
    ),
    "a long name": (
        tensors(info(b"x" * 64, (1,))),
        "tensor name of 64 letters, and 63 are allowed",
    ),
    "five dimensions": (tensors(info(b"a", (1,) * 5)), "5 dimensions, and 4 are allowed"),
    "half a block": (
        tensors(info(b"a", (33,), 8), data=40),
        r"the shape \(33,\), impossible for Q8_0",
    ),
    "a shape of 2^62": (tensors(info(b"a", (1 << 31, 1 << 31))), "impossible for F32"),
    "no type": (tensors(info(b"a", (1,), 999)), "unknown tensor type 999"),
    "a tensor twice": (
        tensors(info(b"a", (8,)), info(b"a", (8,), 0, 32), data=64),
        "has the tensor 'a' twice",
    ),
    "another place": (
        tensors(info(b"a", (8,)), info(b"b", (8,), 0, 64), data=96),
        "at offset 64 and not at 32",
    ),
    "a byte too few": (tensors(info(b"a", (8,)), data=31), r"ends at \d+ bytes, and a needs \d+"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_within_some_megabytes(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(REFUSED[name][0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadSource, match=REFUSED[name][1]):
        read_header(tmp_path / "x")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize(("element", "size"), [(0, 1), (10, 8), (8, 8)])
def test_values_larger_than_any_vocabulary_are_refused(
    tmp_path: Path, element: int, size: int
) -> None:
    """The file is sparse: it is read by range."""
    count = MAX_VALUES // size + 1
    head = start(0, 1) + values(element, count, b"", b"tokens")
    with (tmp_path / "x").open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size * count)
    with pytest.raises(
        BadSource,
        match="up to 'tokens'|under 'tokens'",
    ):
        read_header(tmp_path / "x")


def test_data_begin_at_the_alignment_that_the_file_declares(tmp_path: Path) -> None:
    declared = key(4, struct.pack("<I", 256), ALIGNMENT)
    (tmp_path / "x").write_bytes(made(declared, infos=(info(b"a", (1,)),), data=4, alignment=256))
    header = read_header(tmp_path / "x")
    assert (header.alignment, header.data_start) == (256, 256)


def found(tmp_path: Path, data: bytes) -> GgufHeader:
    (tmp_path / "x").write_bytes(data)
    return read_header(tmp_path / "x")


def test_numbers_of_every_type_and_whole_ones(tmp_path: Path) -> None:
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    keys = [key(kind, struct.pack("<" + code, 7), b"k%d" % kind) for kind, code in formats.items()]
    header = found(tmp_path, made(b"".join([*keys, key(7, b"\1", b"k7")]), len(keys) + 1))
    assert [header.get(f"k{kind}") for kind in formats] == [7] * len(formats)
    assert header.get("k7") is True
    assert (header.whole("k4"), header.whole("absent"), header.whole("absent", 5)) == (7, 0, 5)
    assert (header.get("absent"), header.get("absent", 3)) == (None, 3)
    for name in ("k7", "k6"):
        with pytest.raises(BadSource, match="whole number"):
            header.whole(name)


# Files and shards


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    write(tmp_path / "m.gguf", split=1)
    return sorted(tmp_path.glob("m-*.gguf"))


def test_shards_are_read_as_one_file(shards: list[Path]) -> None:
    file = GgufFile.open(shards[0])
    assert (list(file.paths), len(file.headers)) == (shards, 4)
    assert (file.name, file.path) == ("m-00001-of-00004.gguf", shards[0])
    assert list(file.tensors) == list(plain_tensors())
    assert [file.shard(name) for name in plain_tensors()] == [0, 1, 2, 3]
    assert file.read("output_norm.weight") == plain_tensors()["output_norm.weight"].tobytes()


def test_shards_that_are_missing_renamed_or_repeated(shards: list[Path]) -> None:
    other = shards[0].rename(shards[0].with_name("other.gguf"))
    with pytest.raises(
        BadSource,
        match="first of 4 shards.*-00001-of-00004.gguf",
    ):
        GgufFile.open(other)
    other.rename(shards[0])
    shards[3].unlink()
    with pytest.raises(BadSource, match="m-00004-of-00004.gguf is missing"):
        GgufFile.open(shards[0])
    shards[3].write_bytes(shards[1].read_bytes())
    with pytest.raises(BadSource, match="repeats the tensor"):
        GgufFile.open(shards[0])


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        (
            "third",
            {"split.no": 2, "split.count": 3},
            "third.gguf is shard 3 of a split model; give the first one",
        ),
        (
            "m-00001-of-00003",
            {"split.no": 0, "split.count": 2},
            "the first of 2 shards, so it must be named ...-00001",
        ),
        ("m-00002-of-00002", {}, "is shard 2 of a split model; give m-00001-of-00002.gguf"),
        (
            "m-00001-of-04097",
            {"split.no": 0, "split.count": 4097},
            "4097 shards, and no model has more than 4096",
        ),
        ("model", {"split.count": "two"}, "split.count = 'two'"),
        ("one", {"split.no": 0, "split.count": 1}, ""),
    ],
)
def test_files_that_say_that_they_are_shards(
    tmp_path: Path, name: str, keys: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / f"{name}.gguf", extra=keys)
    if not words:
        assert GgufFile.open(path).paths == (path,)
        return
    with pytest.raises(BadSource, match=words):
        GgufFile.open(path)
