"""Safetensors headers as the reference implementation has them, and lists of numbers in files of
several formats.
"""

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load_file, save_file

from ropeconv.errors import BadSource, UsageError
from ropeconv.formats.safetensors import (
    BITS,
    MAX_HEADER,
    STORED,
    header_bytes,
    read_header,
    tensor_bytes,
    widen,
)
from ropeconv.models.vectors import LONGEST, read_lists
from ropeconv.rope.errors import RopeconvError


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    tensors = {
        "b": np.zeros((2, 3), np.float32),
        "a": np.ones(5, np.float16),
        "empty": np.zeros((0, 4), np.int64),
    }
    for metadata in ({"format": "np"}, None):
        save_file(tensors, tmp_path / "x.safetensors", metadata=metadata)
        header = read_header(tmp_path / "x.safetensors")
        assert {name: (t.dtype, t.shape) for name, t in header.tensors.items()} == {
            "b": ("F32", (2, 3)),
            "a": ("F16", (5,)),
            "empty": ("I64", (0, 4)),
        }
        assert header.metadata == (metadata or {})
        assert header.data_start + 24 + 10 == (tmp_path / "x.safetensors").stat().st_size


def test_safetensors_reads_what_is_written(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(3, dtype=np.uint8),
        "c": np.float16([1]),
    }
    names = {"a": "F32", "b": "U8", "c": "F16"}
    header = header_bytes(
        [(name, names[name], array.shape) for name, array in arrays.items()], {"format": "pt"}
    )
    assert len(header) % 8 == 0
    (tmp_path / "x").write_bytes(
        b"".join([header, *(array.tobytes() for array in arrays.values())])
    )
    tensors = load_file(tmp_path / "x")
    ours = read_header(tmp_path / "x")
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name], array)
    assert (ours.metadata, ours.data_start) == ({"format": "pt"}, len(header))
    places = {
        name: (tensor.start, tensor.stop, tensor.shape) for name, tensor in ours.tensors.items()
    }
    assert places == {"a": (0, 24, (2, 3)), "b": (24, 27, (3,)), "c": (27, 29, (1,))}


def packed(entries: Any, data: int = 0, length: int | None = None) -> bytes:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def one(dtype: Any = "F32", shape: Any = (1,), start: int = 0, stop: int = 4) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}}


@pytest.mark.parametrize("dtype", BITS)
def test_the_types_are_those_of_safetensors(tmp_path: Path, dtype: str) -> None:
    """Eight numbers take as many bytes as one has bits; the reference implementation refuses any
    other size.
    """
    for size in (BITS[dtype] - 1, BITS[dtype], BITS[dtype] + 1):
        (tmp_path / "x").write_bytes(packed(one(dtype, [8], 0, size), size))
        if size == BITS[dtype] == tensor_bytes(dtype, (2, 4)):
            assert deserialize((tmp_path / "x").read_bytes())[0][1]["dtype"] == dtype
            assert read_header(tmp_path / "x").tensors["a"].dtype == dtype
            continue
        with pytest.raises(SafetensorError):
            deserialize((tmp_path / "x").read_bytes())
        with pytest.raises(BadSource):
            read_header(tmp_path / "x")


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "too short"),
    "seven bytes": (bytes(7), "7 bytes, too short"),
    "a header of exabytes": (struct.pack("<Q", 1 << 60), "claims a header of"),
    "a header cut off": (packed({}, length=3), "claims a header of 3 bytes and has 10 in all"),
    "a header too long": (
        packed(b" " * (MAX_HEADER + 1)),
        "a header of 16,777,217 bytes, and the limit is 16,777,216",
    ),
    "no JSON": (packed(b"not json"), "no readable safetensors header"),
    "a list": (packed([1, 2]), "no readable"),
    "a deep list": (packed(b"[" * 100_000), "no readable"),
    "a number": (packed(b'{"a": NaN}'), "no readable"),
    "metadata": (packed({"__metadata__": {"a": 1}}), "no readable"),
    "an unknown type": (packed(one("F5"), 4), "'a' has the dtype 'F5', which is not known"),
    "a side below 0": (packed(one(shape=[-2], stop=8), 8), r"shape\[0\]"),
    "a place below 0": (packed(one(start=-8, stop=0), 8), r"data_offsets\[0\]"),
    "another size": (packed(one(shape=[2]), 4), r"'a' is F32 \[2\] in 4 bytes"),
    "a hole": (packed(one(start=1, stop=5), 9), "hole or an overlap before 'a'"),
    "an overlap": (
        packed({**one("U8", [2], 0, 2), "b": one("U8", [2], 1, 3)["a"]}, 3),
        "an overlap before 'b'",
    ),
    "a byte too few": (packed(one(), 3), "its tensors need 4 bytes and it has 3"),
    "a byte too many": (packed(one(), 5), "has 1 bytes behind its last tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(REFUSED[name][0])
    with pytest.raises(BadSource, match=REFUSED[name][1]):
        read_header(tmp_path / "x")


def test_every_type_of_floats_as_32_bits() -> None:
    numbers = np.array([1.0, -2.5, 0.15625], np.float32)
    stored = {
        "F32": numbers,
        "F64": numbers.astype("<f8"),
        "F16": numbers.astype("<f2"),
        "BF16": (numbers.view(np.uint32) >> 16).astype("<u2"),
    }
    for dtype, values in stored.items():
        kept = values.copy()
        floats = widen(np.frombuffer(values.tobytes(), STORED[dtype]), dtype)
        np.testing.assert_array_equal(floats, numbers)
        assert floats.dtype == np.float32
        np.testing.assert_array_equal(values, kept)


# Lists of numbers

NUMBERS = [0.5, 0.25, 0.125]
NAMED = {"inv_freq": NUMBERS, "long_factor": NUMBERS}


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2"])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1)])
def test_npy_files_of_every_width_and_order(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    np.save(tmp_path / "a.npy", np.array(NUMBERS, dtype).reshape(shape))
    assert read_lists(tmp_path / "a.npy") == NAMED


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<f2"])
def test_safetensors_files(tmp_path: Path, dtype: str) -> None:
    tensors = {
        "inv_freq": np.array(NUMBERS, dtype),
        "other": np.array([1, 2]),
        "a": np.array([3, 4], np.int8),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    assert read_lists(tmp_path / "a.safetensors") == {
        "inv_freq": NUMBERS,
        "other": [1.0, 2.0],
        "a": [3.0, 4.0],
    }
    save_file({"a": np.array([1, 2], np.int8), "b": np.array([True])}, tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="'b' is BOOL; .*F32"):
        read_lists(tmp_path / "a.safetensors")


LISTS = [{"short_factor": NUMBERS}, {"short_factor": [1.0, 1.5, 2.0], "long_factor": NUMBERS}]
SCALING = {"type": "longrope", **LISTS[1]}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", json.dumps(NUMBERS), NAMED),
        ("a.json", "[1e38, -1e38]", {name: [1e38, -1e38] for name in NAMED}),
        ("a.json", json.dumps({**LISTS[0], "factor": 4, "note": "x"}), LISTS[0]),
        *(
            (
                "config.json",
                json.dumps({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], **config}),
                LISTS[1],
            )
            for key in ("rope_scaling", "rope_parameters")
            for config in ({key: SCALING}, {key: None, "text_config": {key: SCALING}})
        ),
        ("a.csv", "0.5\n0.25\n0.125\n", NAMED),
        ("a.csv", "0.5, 0.25,0.125", NAMED),
        ("a.csv", "short_factor\n0.5\n\n0.25\n0.125\n", LISTS[0]),
        ("a.csv", "short_factor,long_factor\r\n1,0.5\r\n1.5,0.25\r\n2,0.125\r\n", LISTS[1]),
    ],
)
def test_json_and_csv_files(
    tmp_path: Path, name: str, text: str, expected: dict[str, list[float]]
) -> None:
    (tmp_path / name).write_text(text)
    assert read_lists(tmp_path / name) == expected


UNREADABLE = "cannot be read as a list of numbers"


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        ("csv", "", "write one column of numbers"),
        ("csv", "1,2\n3,4\n", "columns with their names in the first line"),
        ("csv", "a,b\n1\n", "is not 2 numbers"),
        ("csv", "a\nx\n", "is not 1 number,"),
        ("csv", "1\nx\n", "write one column of numbers"),
        ("csv", '"' + "x" * 200_000, "is not CSV"),
        *(("csv", text, UNREADABLE) for text in ("1\nnan\n", "1\n1e999\n", "1\n" * (LONGEST + 1))),
        ("json", "{}", "has no list of numbers"),
        ("json", '{"a": 5}', "has no list of numbers"),
        *(
            ("json", text, UNREADABLE)
            for text in (
                "",
                "[",
                "[[1.0]]",
                "[null]",
                "[true]",
                '["1"]',
                "[NaN]",
                "[1e999]",
                "[1.01e38]",
                "[-1.01e38]",
                "[1" + "0" * 400 + "]",
                "[" * 10_000,
            )
        ),
    ],
)
def test_texts_of_something_else_are_refused(
    tmp_path: Path, suffix: str, text: str, message: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_lists(path)
    path.unlink()
    with pytest.raises(UsageError, match="does not exist"):
        read_lists(path)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (["a"], UNREADABLE),
        ([True], UNREADABLE),
        ([None], UNREADABLE),
        (np.zeros(2, "f8,i4"), UNREADABLE),
        ([1j], "has the dtype complex128, and real numbers are needed"),
        (np.zeros(LONGEST + 1), "the limit is 65,536 numbers"),
    ],
)
def test_npy_files_of_something_else_are_refused(tmp_path: Path, array: Any, message: str) -> None:
    np.save(tmp_path / "a.npy", np.array(array), allow_pickle=True)
    with pytest.raises(UsageError, match=message):
        read_lists(tmp_path / "a.npy")


def test_texts_with_one_number_on_a_line(tmp_path: Path) -> None:
    path = tmp_path / "anything"
    for text in (
        "0.5\n0.25\n0.125\n",
        "# inv_freq of mine\n\n0.5\n  0.25  # slow\n\n0.125",
        "5e-1\r\n.25\r\n0.125\r\n",
        "\ufeff0.5\n0.25\n0.125\n",
        "0.5 0.25 0.125\n",
        "0.5, 0.25, 0.125",
    ):
        path.write_text(text)
        assert read_lists(path) == NAMED
    np.savetxt(path, np.array(NUMBERS))
    assert read_lists(path) == NAMED
    for text, words in (
        ("0.5\nfast\n", "one column"),
        ("0.5;0.25;0.125", "one column"),
        ("# nothing\n", "one column"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_lists(path)


@pytest.mark.parametrize("name", ["freqs", "rotary_emb.inv_freq"])
def test_one_list_of_any_name(tmp_path: Path, name: str) -> None:
    save_file({name: np.array(NUMBERS)}, tmp_path / "a")
    (tmp_path / "b").write_text(json.dumps({name: NUMBERS}))
    for file in ("a", "b"):
        assert read_lists(tmp_path / file)["inv_freq"] == NUMBERS
    save_file({name: np.array(NUMBERS), "other": np.array(NUMBERS)}, tmp_path / "a")
    assert "inv_freq" not in read_lists(tmp_path / "a")  # which of two it is has to be said


def test_files_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "anything"
    vector = torch.tensor(NUMBERS, dtype=torch.float64)
    for value in (
        vector,
        vector.half(),
        vector.bfloat16()[None],
        torch.nn.Parameter(vector),
        NUMBERS,
        {"freqs": vector},
    ):
        for zipped in (True, False):
            torch.save(value, path, _use_new_zipfile_serialization=zipped)
            assert read_lists(path) == NAMED
    torch.save({"short_factor": vector, "long_factor": NUMBERS}, path)
    assert read_lists(path) == {"short_factor": NUMBERS, "long_factor": NUMBERS}
    for value, words in (
        (np.array(NUMBERS), "other objects than tensors"),
        (Path("x"), "other objects than tensors"),
        (torch.ones(2, 3), "one list is needed"),
        (vector.to(torch.complex64), "real numbers"),
        (torch.ones(LONGEST + 1), "limit is 65,536"),
        (torch.ones(1 << 19), "save only the list"),
        (5, "no list"),
    ):
        torch.save(value, path)
        with pytest.raises(UsageError, match=words):
            read_lists(path)
    torch.save(vector, path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UsageError, match="damaged"):
        read_lists(path)
    monkeypatch.setattr("ropeconv.environment.installed", lambda package: False)
    with pytest.raises(RopeconvError, match="needs torch"):
        read_lists(path)


class Bomb:
    """Whoever loads it as a pickle makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.place),)


def test_no_pickle_is_executed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    made = tmp_path / "made"
    path.write_bytes(pickle.dumps(Bomb(made), protocol=2))
    with pytest.raises(UsageError, match="other objects"):
        read_lists(path)
    assert not made.exists()
    pickle.loads(path.read_bytes())  # the control
    assert made.is_dir()


def test_an_array_of_two_dimensions_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    save_file({"inv_freq": np.ones((2, 3))}, tmp_path / "a.safetensors")
    for name in ("a.npy", "a.safetensors"):
        with pytest.raises(UsageError, match=r"shape \(2, 3\)"):
            read_lists(tmp_path / name)


def test_files_of_another_kind_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, words in (
        (b"GGUF\3\0\0\0", "a GGUF file, and"),
        (b"\x1f\x8b\x08", "unpack it"),
        (b"<!DOCTYPE html>", "a web page"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            read_lists(path)


@pytest.mark.parametrize("name", ["a.json", "a.npy", "a.safetensors"])
def test_damaged_files_and_fifos_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\0")
    with pytest.raises(UsageError, match=UNREADABLE):
        read_lists(tmp_path / name)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match="is a FIFO"):
        read_lists(tmp_path / name)
