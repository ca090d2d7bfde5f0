"""The way back by several threads: in order, a bounded number of pieces ahead of who takes them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from ropeconv.errors import BadSource
from ropeconv.export.checkpoint import GgufCheckpoint, read
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import GgufSource

from ..support.llamacpp import bake, checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("read") / "model")


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> GgufCheckpoint:
    path = tmp_path / "model.gguf"
    bake(folder, Recipe(REGISTRY["as-is"]()), path, outtype="f32")
    return GgufCheckpoint(GgufSource(path))


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_what_comes_back_is_in_order_and_little_is_made_ahead(
    source: GgufCheckpoint, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    made, gathered = 0, read._gathered
    pauses = np.random.default_rng(workers)

    def late(*given: object) -> np.ndarray:
        nonlocal made
        time.sleep(float(pauses.uniform(0, 0.004)))
        found = gathered(*given)  # type: ignore[arg-type]
        made += found.size
        return found

    monkeypatch.setattr(read, "_gathered", late)
    monkeypatch.setattr(read, "PIECE", 512)
    monkeypatch.setattr(read, "threads", lambda: workers)
    out, taken, ahead = tmp_path / "out.safetensors", 0, list[int]()
    with out.open("wb") as file:
        for block in source.generated_files()[0].stream():
            if taken == 0:
                time.sleep(0.3)
            file.write(block)
            taken += len(block)
            ahead.append(made)
    assert ahead[1] <= 512 * (2 * workers + 2)
    back, there = safetensors.torch.load_file(out), safetensors.torch.load_file(folder / "model.safetensors")
    assert sum(tensor.numel() for tensor in back.values()) == made > 100 * 512
    assert all(np.array_equal(back[name].numpy(), tensor.float().numpy()) for name, tensor in there.items())


def test_a_file_that_is_cut_off_leaves_no_thread(source: GgufCheckpoint) -> None:
    stream, threads = source.generated_files()[0].stream, threading.active_count()
    path = source.inner.path
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(BadSource, match="^model.gguf was cut off while it was read; run again$"):
        for _ in stream():
            pass
    assert threading.active_count() == threads
