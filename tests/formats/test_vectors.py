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


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2"])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1)])
def test_npy_files_of_every_width_and_order(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.array(NUMBERS, dtype).reshape(shape))
    assert read_lists(tmp_path / "a.npy") == {"inv_freq": NUMBERS, "long_factor": NUMBERS}


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<f2"])
def test_safetensors_files(tmp_path: Path, dtype: str) -> None:
    save_file({"inv_freq": np.array(NUMBERS, dtype), "other": np.array([1, 2])}, tmp_path / "a.safetensors")
    assert read_lists(tmp_path / "a.safetensors") == {"inv_freq": NUMBERS, "other": [1.0, 2.0]}


def test_json_lists_and_objects_of_lists(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(NUMBERS))
    (tmp_path / "b.json").write_text(json.dumps({"short_factor": NUMBERS, "factor": 4}))
    assert read_lists(tmp_path / "a.json") == {"inv_freq": NUMBERS, "long_factor": NUMBERS}
    assert read_lists(tmp_path / "b.json") == {"short_factor": NUMBERS}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.5\n0.25\n0.125\n", {"inv_freq": NUMBERS, "long_factor": NUMBERS}),
        ("0.5, 0.25,0.125", {"inv_freq": NUMBERS, "long_factor": NUMBERS}),
        ("inv_freq\n0.5\n\n0.25\n0.125\n", {"inv_freq": NUMBERS}),
        (
            "short_factor,long_factor\r\n1,0.5\r\n1.5,0.25\r\n2,0.125\r\n",
            {"short_factor": [1.0, 1.5, 2.0], "long_factor": NUMBERS},
        ),
    ],
)
def test_csv_files(tmp_path: Path, text: str, found: dict[str, list[float]]) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert read_lists(tmp_path / "a.csv") == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write one column of numbers"), ("1,2\n3,4\n", "columns with their names in the first line"),
        ("a,b\n1\n", "is not 2 numbers"), ("a\nx\n", "is not 1 number,"), ("1\nx\n", "write one column of numbers"),
        ("1\nnan\n", "cannot be read"), ("1\n1e999\n", "cannot be read"), ("1\n" * (LONGEST + 1), "cannot be read"),
        ('"' + "x" * 200_000, "is no CSV"),
    ],
)  # fmt: skip
def test_csv_files_of_something_else_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_lists(tmp_path / "a.csv")


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_lists_of_a_config(tmp_path: Path, key: str) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": NUMBERS}
    for config in ({"model_type": "phi3", key: scaling}, {"model_type": "x", "text_config": {key: scaling}}):
        (tmp_path / "config.json").write_text(
            json.dumps({**config, "architectures": ["Phi3ForCausalLM"], key: None} | config)
        )
        assert read_lists(tmp_path / "config.json") == {"short_factor": [1.0] * 3, "long_factor": NUMBERS}


def test_the_lists_of_a_published_config() -> None:
    found = read_lists(CONFIGS / "microsoft--Phi-3-mini-128k-instruct.json")
    assert {name: len(values) for name, values in found.items()} == {"short_factor": 48, "long_factor": 48}


@pytest.mark.parametrize("array", [["a"], [True], [1j], [None], np.zeros(LONGEST + 1), np.zeros(2, "f8,i4")])
def test_npy_files_of_something_else_are_refused(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "a.npy", np.array(array), allow_pickle=True)
    with pytest.raises(UsageError, match="cannot be read as a list of numbers"):
        read_lists(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "shape", ["(9,)", "(1099511627776,)", "(-1,)", "(4611686018427387904, 4)", "'x'", "(1.5,)", "(8", ""]
)
def test_npy_headers_that_claim_something_else_are_refused(tmp_path: Path, shape: str) -> None:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 64)
    with pytest.raises(UsageError, match="cannot be read as a list of numbers"):
        read_lists(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "text", ["", "[[1.0]]", "[null]", "[true]", '["1"]', "[NaN]", "[1e999]", "[1" + "0" * 400 + "]", "[" * 10_000]
)
def test_json_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match="cannot be read as a list of numbers"):
        read_lists(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["a.json", "a.npy", "a.safetensors"])
def test_damaged_files_and_fifos_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\0")
    with pytest.raises(UsageError, match="cannot be read as a list of numbers"):
        read_lists(tmp_path / name)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match="is a FIFO"):
        read_lists(tmp_path / name)
