"""One identity of a model for eval, tune, run and a resumed apply: the weights decide, never times alone."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.evaluate.opening import Sizes, evaluate_model
from ropeconv.run.sources import named_sources
from ropeconv.sources import open_source

from ..run.plans import models
from ..support import gguf_files

LARGE = 1 << 26
"""Bytes of a tensor of zeros, which takes no room on the disk."""


def copied(folder: Path, name: str) -> Path:
    """A copy of a model with the same times."""
    subprocess.run(["cp", "-rp", str(folder), str(folder.with_name(name))], check=True)
    return folder.with_name(name)


def changed(path: Path, place: int, size: int = 1) -> None:
    """Changes bytes of a file, and leaves its time as it was."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(size)
        file.seek(place)
        file.write(bytes(byte ^ 1 for byte in old))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def twins(tmp_path: Path, tiny: Callable[[str], Path]) -> tuple[Path, Path]:
    """Two models with the same config, names, sizes and times; the sign of the last weight differs."""
    one = models(tmp_path, tiny("llama"), "a") / "models" / "a"
    other = copied(one, "b")
    path = other / "model.safetensors"
    changed(path, path.stat().st_size - 200, 200)
    for mine, theirs in zip(sorted(one.iterdir()), sorted(other.iterdir()), strict=True):
        status = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in (mine, theirs)]
        assert status[0] == status[1]
    return one, other


def test_numbers_of_one_model_are_never_those_of_another(twins: tuple[Path, Path], tmp_path: Path) -> None:
    def evaluated(model: Path) -> list[float]:
        sizes, text = Sizes(lengths="1T", windows=1, targets=8), tmp_path / "text.txt"
        found = evaluate_model(model, "base", [text], sizes, tmp_path / "journal.jsonl", dtype="float32")
        return [cell.value for cell in found.cells]

    first = evaluated(twins[0])
    with pytest.raises(BadSource, match="is the journal of another model"):
        evaluated(twins[1])
    assert evaluated(copied(twins[0], "c")) == first, "the same model under another name"


def test_run_and_tune_tell_them_apart(twins: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = named_sources([str(path) for path in twins], tmp_path)
    assert (one.problem, other.problem) == ("", "")
    assert one.identity != other.identity
    assert [open_source(str(path)).identity for path in twins] == [one.identity, other.identity]


def sparse(path: Path) -> dict[str, tuple[int, int]]:
    """A safetensors file of three tensors, of which the middle one is small; where each begins and ends."""
    ends = (LARGE, LARGE + 2048, 2 * LARGE)
    places = dict(zip("abc", zip((0, *ends), ends, strict=False), strict=True))
    header = {name: {"dtype": "U8", "shape": [b - a], "data_offsets": [a, b]} for name, (a, b) in places.items()}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 2 * LARGE)
    return {name: (8 + len(text) + a, 8 + len(text) + b) for name, (a, b) in places.items()}


def test_one_changed_tensor_of_a_large_file_is_another_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    places = sparse(model / "model.safetensors")
    first = open_source(str(model)).identity
    assert open_source(str(copied(model, "copy"))).identity == first
    for start, stop in places.values():
        changed(model / "model.safetensors", start, stop - start if stop - start < LARGE else LARGE // 32)
        found = open_source(str(model)).identity
        assert found != first
        first = found
    (model / "README.md").write_text("a card")
    assert open_source(str(model)).identity == first
    (model / "tokenizer.json").write_text("{}")
    assert open_source(str(model)).identity != first


def test_a_change_in_place_that_no_sample_shows_has_another_time(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    start, _ = sparse(model / "model.safetensors")["a"]
    before = open_source(str(model)).identity
    changed(model / "model.safetensors", start + 70_000)
    assert open_source(str(model)).identity == before, "one byte between the samples, at the same time"
    os.utime(model / "model.safetensors", ns=(1, 1))
    assert open_source(str(model)).identity != before


@pytest.mark.parametrize("tensor", ["token_embd.weight", "blk.1.attn_k.weight"])
def test_gguf_files_go_by_their_weights(tmp_path: Path, tensor: str) -> None:
    path = tmp_path / "a.gguf"
    tensors = {"token_embd.weight": np.zeros((1 << 14, 1 << 10), np.float32)}
    tensors |= {f"blk.{layer}.attn_k.weight": np.zeros((2, 64), np.float32) for layer in range(3)}
    gguf_files.write(path, "llama", {}, tensors)
    other = tmp_path / "other" / "a.gguf"
    other.parent.mkdir()
    subprocess.run(["cp", "-p", str(path), str(other)], check=True)
    before = open_source(str(path)).identity
    assert open_source(str(other)).identity == before
    file = open_source(str(other)).file  # type: ignore[union-attr]
    info = file.tensors[tensor]
    changed(other, file.header.data_start + info.offset + info.size // 2 - 8, 16)
    assert open_source(str(other)).identity != before
