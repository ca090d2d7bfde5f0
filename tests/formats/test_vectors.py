"""Lists of numbers in files, written by numpy and safetensors themselves."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ropeconv.errors import UsageError
from ropeconv.formats.vectors import LONGEST, read_lists

from ..conftest import CONFIGS

NUMBERS = [0.5, 0.25, 0.125]
NAMED = {"inv_freq": NUMBERS, "long_factor": NUMBERS}


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2"])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1)])
def test_npy_files_of_every_width_and_order(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.array(NUMBERS, dtype).reshape(shape))
    assert read_lists(tmp_path / "a.npy") == NAMED


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<f2"])
def test_safetensors_files(tmp_path: Path, dtype: str) -> None:
    tensors = {"inv_freq": np.array(NUMBERS, dtype), "other": np.array([1, 2]), "a": np.array([3, 4], np.int8)}
    save_file(tensors, tmp_path / "a.safetensors")
    assert read_lists(tmp_path / "a.safetensors") == {"inv_freq": NUMBERS, "other": [1.0, 2.0], "a": [3.0, 4.0]}
    save_file({"a": np.array([1, 2], np.int8), "b": np.array([True])}, tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="'b' is BOOL; write it as F32 or F64"):
        read_lists(tmp_path / "a.safetensors")


LISTS = [{"short_factor": NUMBERS}, {"short_factor": [1.0, 1.5, 2.0], "long_factor": NUMBERS}]
SCALING = {"type": "longrope", **LISTS[1]}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.json", json.dumps(NUMBERS), NAMED), ("a.json", "[1e38, -1e38]", {name: [1e38, -1e38] for name in NAMED}),
        ("a.json", json.dumps({**LISTS[0], "factor": 4, "note": "x"}), LISTS[0]),
        *(("config.json", json.dumps({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], **config}), LISTS[1])
          for key in ("rope_scaling", "rope_parameters")
          for config in ({key: SCALING}, {key: None, "text_config": {key: SCALING}})),
        ("a.csv", "0.5\n0.25\n0.125\n", NAMED), ("a.csv", "0.5, 0.25,0.125", NAMED),
        ("a.csv", "short_factor\n0.5\n\n0.25\n0.125\n", LISTS[0]),
        ("a.csv", "short_factor,long_factor\r\n1,0.5\r\n1.5,0.25\r\n2,0.125\r\n", LISTS[1]),
    ],
)  # fmt: skip
def test_json_and_csv_files(tmp_path: Path, name: str, text: str, found: dict[str, list[float]]) -> None:
    (tmp_path / name).write_text(text)
    assert read_lists(tmp_path / name) == found


def test_the_lists_of_a_published_config() -> None:
    found = read_lists(CONFIGS / "microsoft--Phi-3-mini-128k-instruct.json")
    assert {name: len(values) for name, values in found.items()} == {"short_factor": 48, "long_factor": 48}


UNREADABLE = "cannot be read as a list of numbers"


@pytest.mark.parametrize(
    ("suffix", "text", "said"),
    [
        ("csv", "", "write one column of numbers"), ("csv", "1,2\n3,4\n", "columns with their names in the first line"),
        ("csv", "a,b\n1\n", "is not 2 numbers"), ("csv", "a\nx\n", "is not 1 number,"),
        ("csv", "1\nx\n", "write one column of numbers"), ("csv", '"' + "x" * 200_000, "is no CSV"),
        *(("csv", text, UNREADABLE) for text in ("1\nnan\n", "1\n1e999\n", "1\n" * (LONGEST + 1))),
        ("json", "{}", "holds no list of numbers"), ("json", "5", "holds no list of numbers"),
        *(("json", text, UNREADABLE) for text in (
            "", "[", "[[1.0]]", "[null]", "[true]", '["1"]', "[NaN]", "[1e999]", "[1.01e38]", "[-1.01e38]",
            "[1" + "0" * 400 + "]", "[" * 10_000,
        )),
    ],
)  # fmt: skip
def test_texts_of_something_else_are_refused(tmp_path: Path, suffix: str, text: str, said: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_lists(path)
    path.unlink()
    with pytest.raises(UsageError, match="does not exist; give a .json, .csv, .npy or .safetensors file"):
        read_lists(path)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (["a"], UNREADABLE), ([True], UNREADABLE), ([None], UNREADABLE), (np.zeros(2, "f8,i4"), UNREADABLE),
        ([1j], "holds complex128, and real numbers are needed"),
        (np.zeros(LONGEST + 1), "at most 65,536 numbers are read"),
    ],
)  # fmt: skip
def test_npy_files_of_something_else_are_refused(tmp_path: Path, array: Any, said: str) -> None:
    np.save(tmp_path / "a.npy", np.array(array), allow_pickle=True)
    with pytest.raises(UsageError, match=said):
        read_lists(tmp_path / "a.npy")


@pytest.mark.parametrize("count", [0, 1, LONGEST])
def test_lists_of_any_length_that_is_read(tmp_path: Path, count: int) -> None:
    np.save(tmp_path / "a.npy", np.ones(count, np.float32))
    assert read_lists(tmp_path / "a.npy")["inv_freq"] == [1.0] * count


@pytest.mark.parametrize(
    "shape", ["(9,)", "(1099511627776,)", "(-1,)", "(4611686018427387904, 4)", "'x'", "(1.5,)", "(8", ""]
)
def test_npy_headers_that_claim_something_else_are_refused(tmp_path: Path, shape: str) -> None:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 64)
    with pytest.raises(UsageError, match=UNREADABLE):
        read_lists(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ["a.json", "a.npy", "a.safetensors"])
def test_damaged_files_and_fifos_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\0")
    with pytest.raises(UsageError, match=UNREADABLE):
        read_lists(tmp_path / name)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match="is a FIFO"):
        read_lists(tmp_path / name)
