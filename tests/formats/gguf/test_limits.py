"""GGUF headers from strangers are refused within a second and some megabytes, whatever they claim."""

from __future__ import annotations

import resource
import struct
import time
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import GgufFile, read_header
from ropeconv.formats.gguf.header import (
    MAX_ALIGNMENT,
    MAX_HEADER,
    MAX_KEYS,
    MAX_TENSORS,
    MAX_VALUES,
    Beyond,
    parse_header,
)

from ...support.gguf_files import write


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(keys: int = 0, tensors: int = 0, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body


def aligned(alignment: int) -> bytes:
    return header(1, 0, text(b"general.alignment") + struct.pack("<II", 4, alignment))


def refused(path: Path, said: str) -> None:
    """Checks that a file is refused, within five seconds and 200 MB."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(BadSource, match=said):
        read_header(path)
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("alignment", [MAX_ALIGNMENT * 2, 1 << 26, 1 << 31])
def test_an_alignment_beyond_all_files(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(aligned(alignment))
    refused(path, f"general.alignment {alignment}, and at most {MAX_ALIGNMENT}")
    path.write_bytes(aligned(MAX_ALIGNMENT))
    assert read_header(path).alignment == MAX_ALIGNMENT


def test_ten_million_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    keys = b"".join(text(b"%07d" % number) + struct.pack("<IB", 0, 1) for number in range(MAX_KEYS + 1))
    path.write_bytes(header(MAX_KEYS + 1, 0, keys))
    refused(path, "claims 16385 keys, and no model has more than 16384")
    path.write_bytes(header(MAX_KEYS, 0, keys))
    assert len(read_header(path).values) == MAX_KEYS


def test_more_tensors_than_any_model(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(header(0, MAX_TENSORS + 1, bytes(24 * (MAX_TENSORS + 1))))
    refused(path, "claims 65537 tensors, and no model has more than 65536; ropeconv reads no more, so report it")
    path.write_bytes(header(0, MAX_TENSORS + 1, bytes(24)))
    refused(path, "claims 65537 tensors, more than a file of .* bytes can hold; download it again")


@pytest.mark.parametrize(("element", "size"), [(0, 1), (10, 8), (8, 8)])
def test_values_larger_than_any_vocabulary(tmp_path: Path, element: int, size: int) -> None:
    """The file is sparse: it is read by range."""
    path, count = tmp_path / "a.gguf", MAX_VALUES // size + 1
    start = header(1, 0, text(b"tokens") + struct.pack("<IIQ", 9, element, count))
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size * count)
    refused(path, "bytes of values up to 'tokens'|strings under 'tokens', more than a header can hold")


@pytest.mark.parametrize("count", [1 << 62, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("element", [0, 8, 12])
def test_arrays_that_claim_more_than_the_file(tmp_path: Path, element: int, count: int) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(header(1, 0, text(b"tokens") + struct.pack("<IIQ", 9, element, count) + bytes(64)))
    refused(path, "within 'tokens'|under 'tokens'")


def test_keys_with_names_that_fill_a_gigabyte(tmp_path: Path) -> None:
    """Each may have 65,535 bytes, and 16,384 of them are allowed."""
    path, count = tmp_path / "a.gguf", MAX_HEADER // 0xFFFF + 1
    keys = (text(b"%065535d" % number) + struct.pack("<IB", 0, 1) for number in range(count))
    with path.open("wb") as file:
        file.write(header(count, 0))
        file.writelines(keys)
    refused(path, f"has a header of more than {MAX_HEADER:,} bytes")


def test_headers_of_shards_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "m.gguf", split=2).with_name("m-00001-of-00002.gguf")
    sizes = [one.data_start for one in GgufFile.open(first).headers]
    said = "the headers of m-00001-of-00002.gguf and its shards have more than"
    for name, least in (("MAX_HEADER", sum(sizes)), ("MAX_TENSORS", 4)):
        with monkeypatch.context() as patched:
            patched.setattr(f"ropeconv.formats.gguf.file.{name}", least)
            assert len(GgufFile.open(first).shards) == 2
            patched.setattr(f"ropeconv.formats.gguf.file.{name}", least - 1)
            with pytest.raises(BadSource, match=said):
                GgufFile.open(first)


def test_more_shards_than_any_model(tmp_path: Path) -> None:
    path = write(tmp_path / "m-00001-of-04097.gguf", extra={"split.no": 0, "split.count": 4097})
    with pytest.raises(BadSource, match="claims 4097 shards, and no model has more than 4096"):
        GgufFile.open(path)


@pytest.mark.parametrize("stop", [24, 100, 5_000])
def test_a_header_of_which_only_the_beginning_is_there(tmp_path: Path, stop: int) -> None:
    """It asks for more than is there and at most for all of the header, and is then what the file has."""
    path = write(tmp_path / "m.gguf", vocabulary=500)
    data, whole = path.read_bytes(), read_header(path)
    while True:
        try:
            found = parse_header(data[:stop], len(data), path.name)
        except Beyond as problem:
            known, stop = stop, problem.stop
            assert known < stop <= whole.data_start
        else:
            assert found == whole
            break


def test_published_sizes_are_far_below_the_limits(tmp_path: Path) -> None:
    """A vocabulary of 262,144 tokens with scores, as Gemma 3 has."""
    file = GgufFile.open(write(tmp_path / "a.gguf", vocabulary=262_144))
    assert file.header.values["tokenizer.ggml.tokens"].count() == 262_144
    assert sum(len(value.raw) for value in file.header.values.values()) < MAX_VALUES / 5
