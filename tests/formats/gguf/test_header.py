"""GGUF headers: what gguf-py writes is read back, and what is damaged gets a sentence."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import GgufFile, read_header
from ropeconv.formats.gguf.types import TYPES

from ...support.gguf_files import contents, plain_tensors, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", extra={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "flag": True})


def test_values_and_tensors_are_those_that_gguf_py_wrote(path: Path) -> None:
    header, theirs = read_header(path), gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert header.get(name) == field.contents(), name
    assert header.data_start == theirs.data_offset
    for tensor in theirs.tensors:
        ours = header.tensors[tensor.name]
        assert (ours.shape, ours.type) == (tuple(int(n) for n in tensor.shape), int(tensor.tensor_type))
        assert (header.data_start + ours.offset, ours.size) == (tensor.data_offset, tensor.n_bytes)
    assert GgufFile.open(path).read("token_embd.weight") == contents(path)["token_embd.weight"]


def test_the_types_are_those_of_llama_cpp() -> None:
    """Asked of the library itself; gguf-py has 40 bytes for a block of Q8_1, which are 36."""
    library = ctypes.CDLL(str(next(Path(llama_cpp.__file__).parent.glob("lib/*ggml-base*"))))
    library.ggml_type_size.restype, library.ggml_blck_size.restype = ctypes.c_size_t, ctypes.c_int64
    library.ggml_type_name.restype = ctypes.c_char_p
    for number, kind in TYPES.items():
        assert library.ggml_type_name(number).decode().upper() == kind.name
        assert (library.ggml_blck_size(number), library.ggml_type_size(number)) == (kind.block, kind.size)
    removed = [number for number in range(max(TYPES) + 1) if number not in TYPES]
    assert [library.ggml_type_size(number) for number in removed] == [0] * len(removed)


def test_a_large_vocabulary_is_not_decoded(tmp_path: Path) -> None:
    path = write(tmp_path / "large.gguf", vocabulary=150_000)
    header = read_header(path)
    assert header.values["tokenizer.ggml.tokens"].count() == 150_000
    assert header.get("tokenizer.ggml.tokens")[149_999] == "token 149999"


def test_a_file_cut_off_anywhere_gets_a_sentence(path: Path, tmp_path: Path) -> None:
    data, cut = path.read_bytes(), tmp_path / "cut.gguf"
    header = read_header(path)
    end = header.data_start + header.data_size
    for length in [*range(0, header.data_start, 7), *range(header.data_start, end, 5000), end - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(BadSource, match="download it again"):
            GgufFile.open(cut)


@pytest.mark.parametrize(
    ("at", "new", "words"),
    [
        (0, b"GGML", "begins with"),
        (4, struct.pack("<I", 1), "version 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 1 << 60), "claims"),
        (16, struct.pack("<Q", 1 << 60), "claims"),
        (24, struct.pack("<Q", 1 << 40), "a key of"),
    ],
)
def test_a_wrong_beginning(path: Path, at: int, new: bytes, words: str) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)
    with pytest.raises(BadSource, match=words):
        read_header(path)


def _replaced(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def test_a_string_that_goes_past_the_end(path: Path) -> None:
    _replaced(path, struct.pack("<Q", 4) + b"yarn", struct.pack("<Q", 1 << 50) + b"yarn")
    with pytest.raises(BadSource, match="cut off"):
        read_header(path)


def test_a_key_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", extra={"aaaa": 1, "bbbb": 2})
    _replaced(path, b"llama.bbbb", b"llama.aaaa")
    with pytest.raises(BadSource, match=r"'llama.aaaa' twice"):
        read_header(path)


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_an_alignment_that_is_no_power_of_two(tmp_path: Path, alignment: int) -> None:
    path = write(tmp_path / "model.gguf", extra={"general.alignmenx": alignment})
    _replaced(path, b"general.alignmenx", b"general.alignment")
    with pytest.raises(BadSource, match="power of two"):
        read_header(path)


def test_tensors_that_overlap_run_out_or_have_no_type(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    infos = data.index(b"blk.0.attn_q.weight")
    offset = infos + len(b"blk.0.attn_q.weight") + 4 + 2 * 8 + 4
    for place, new, words in (
        (offset, struct.pack("<Q", 32), "overlap or leave gaps"),
        (offset, struct.pack("<Q", 1 << 62), "overlap or leave gaps"),
        (offset - 4, struct.pack("<I", 4), "unknown tensor type 4"),
        (offset - 4, struct.pack("<I", 999), "unknown tensor type 999"),
        (offset - 4, struct.pack("<I", 12), "impossible for Q4_K"),
        (offset - 12, struct.pack("<Q", 1 << 61), "impossible for F16"),
        (offset - 12, struct.pack("<Q", 1 << 40), "needs|overlap"),
    ):
        bad = bytearray(data)
        bad[place : place + len(new)] = new
        damaged = tmp_path / "damaged.gguf"
        damaged.write_bytes(bad)
        with pytest.raises(BadSource, match=words):
            read_header(damaged)


def test_shards_are_read_as_one_and_missed_when_missing(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", split=2)
    first, second = sorted(tmp_path.glob("model-*.gguf"))
    whole = GgufFile.open(first)
    assert list(whole.tensors) == list(plain_tensors())
    assert whole.read("output_norm.weight") == plain_tensors()["output_norm.weight"].tobytes()
    with pytest.raises(BadSource, match="is shard 2 of a split model; give model-00001-of-00002.gguf"):
        GgufFile.open(second)
    second.unlink()
    with pytest.raises(BadSource, match="model-00002-of-00002.gguf is missing"):
        GgufFile.open(first)
    renamed = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(BadSource, match="give it back its name"):
        GgufFile.open(renamed)


ORIGINAL: dict[str, bytes] = {}


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_header_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Never a traceback, a hang or memory beyond the file's size: everything is checked before it is believed."""
    if not ORIGINAL:
        ORIGINAL["file"] = write(tmp_path_factory.mktemp("mutated") / "model.gguf").read_bytes()[:4096]
    original = ORIGINAL["file"]
    mutated = bytearray(original)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, 1500))
        new = data.draw(st.sampled_from([b"\0", b"\xff", b"\xff" * 8, struct.pack("<Q", 1 << 60), b"\x09", b"\x08"]))
        mutated[place : place + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "mutation.gguf"
    path.write_bytes(mutated[: data.draw(st.sampled_from([len(mutated), 2000, 900]))] + bytes(1 << 17))
    try:
        file = GgufFile.open(path)
    except BadSource:
        return
    for value in file.header.values.values():
        assert len(value.raw) <= path.stat().st_size
        value.decode()


def test_numbers_where_text_belongs(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", extra={"split.count": "two"})
    with pytest.raises(BadSource, match="split.count = 'two'"):
        GgufFile.open(path)


def test_not_a_file_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"")
    with pytest.raises(BadSource, match="too short"):
        read_header(path)
    path.write_bytes(np.random.default_rng(0).bytes(1000))
    with pytest.raises(BadSource, match="begins with"):
        read_header(path)


def test_a_sentence_has_one_repair(path: Path) -> None:
    """To download another version again would not help."""
    data = bytearray(path.read_bytes())
    for version, words in ((9, "has GGUF version 9, and 2 and 3 are supported; convert the model again"),
                           (0x03000000, "convert the model again on a little-endian machine")):  # fmt: skip
        data[4:8] = struct.pack("<I", version)
        path.write_bytes(data)
        with pytest.raises(BadSource, match=f"{words}$"):
            read_header(path)
    path.write_bytes(b"GGUX" + data[4:])
    with pytest.raises(BadSource, match="; download it again$"):
        read_header(path)
