"""The real model, which is fetched on first use; where it cannot be had, its tests are skipped with
the reason.
"""

from pathlib import Path

import gguf
import numpy as np
import pytest

from scripts.real_model import CACHE, RealModel, Unavailable, published_gguf, real_model


@pytest.fixture(scope="session")
def real() -> RealModel:
    """SmolLM2-135M-Instruct as GGUF and as checkpoint, and Python's manual as texts."""
    try:
        return real_model(CACHE)
    except Unavailable as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def published() -> Path:
    try:
        return published_gguf(CACHE)
    except Unavailable as problem:
        pytest.skip(str(problem))


def tensors_of(path: Path) -> dict[str, gguf.ReaderTensor]:
    """The tensors of a GGUF file, as gguf-py reads them."""
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def numbers(tensor: gguf.ReaderTensor) -> np.ndarray:
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)
