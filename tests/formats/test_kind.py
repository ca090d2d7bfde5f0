"""What a file is, by its first bytes, whatever its name says."""

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from ropeconv.formats.kind import is_gguf, is_graph, kind_of, refusal

from ..support.gguf_files import write


def a_gguf_file(path: Path) -> None:
    made = write(path.with_name("made.gguf"))
    made.rename(path)


def a_torch_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("consolidated/data.pkl", b"\x80\x02}q\0.")


def an_onnx_file(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path.write_bytes(onnx.ModelProto(ir_version=10, producer_name="me").SerializeToString())


def an_npz_file(path: Path) -> None:
    held = io.BytesIO()
    np.savez(held, a=np.ones(3))
    path.write_bytes(held.getvalue())


def an_npy_file(path: Path) -> None:
    held = io.BytesIO()
    np.save(held, np.ones(3))
    path.write_bytes(held.getvalue())


def an_imatrix(path: Path) -> None:
    """As save_imatrix_legacy of llama.cpp's imatrix.cpp writes it."""
    name = b"blk.0.attn_q.weight"
    entry = struct.pack("<i", len(name)) + name + struct.pack("<ii4f", 2, 4, 1, 2, 3, 4)
    path.write_bytes(struct.pack("<i", 1) + entry + struct.pack("<ii", 2, 4) + b"wiki")


MADE: dict[str, Callable[[Path], object]] = {
    "gguf": a_gguf_file,
    "safetensors": lambda path: path.write_bytes(save({"a": np.ones(2, np.float32)})),
    "torch": a_torch_file,
    "pickle": lambda path: path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)),
    "onnx": an_onnx_file,
    "openvino": lambda path: path.write_text(
        '<?xml version="1.0"?>\n<net name="m" version="11"></net>\n'
    ),
    "npy": an_npy_file,
    "npz": an_npz_file,
    "json": lambda path: path.write_bytes(b'\xef\xbb\xbf \n{"model_type": "llama"}'),
    "text": lambda path: path.write_text("0.5\n0.25\n" + "é" * 4100),
    "lfs": lambda path: path.write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    ),
    "html": lambda path: path.write_text("<!DOCTYPE html>\n<html>Sign in</html>"),
    "ggml": lambda path: path.write_bytes(struct.pack("<II", 0x67676A74, 3) + bytes(40)),
    "imatrix": an_imatrix,
    "hdf5": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(9)),
    "tflite": lambda path: path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(9)),
    "archive": lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(9)),
    "empty": lambda path: path.touch(),
    "folder": lambda path: path.mkdir(),
    "special": lambda path: os.mkfifo(path),
    "missing": lambda path: None,
    "unknown": lambda path: path.write_bytes(bytes(range(7)) + b"\0\xff"),
}


@pytest.mark.parametrize("kind", list(MADE))
@pytest.mark.parametrize("name", ["sha256-0123", "model.safetensors", "m.gguf"])
def test_a_file_is_known_by_its_first_bytes(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    MADE[kind](path)
    assert kind_of(path) == kind
    by_name = (
        kind in ("missing", "empty", "text", "lfs", "html", "special", "unknown")
        and name == "m.gguf"
    )
    assert is_gguf(path) == (kind == "gguf" or by_name)
    assert is_graph(str(path)) == (kind in ("onnx", "openvino", "tflite"))


@pytest.mark.parametrize("kind", sorted(set(MADE) - {"gguf"}))
def test_a_file_that_is_needed_and_is_another_gets_one_sentence(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    MADE[kind](path)
    sentence = refusal(path, "a GGUF file")
    assert (
        str(path) in sentence,
        "\n" in sentence,
        "; " in sentence or "needed there" in sentence,
    ) == (
        True,
        False,
        True,
    )


def test_a_name_with_a_zero_byte_is_missing() -> None:
    assert kind_of("a\0b") == "missing"
