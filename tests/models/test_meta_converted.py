"""Meta's layout in one step: ranges of its tensors, GGUF, stored buffers, comparisons with its outputs."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource, Disagreement
from ropeconv.models.open import open_source
from ropeconv.models.source import Source

from ..hub.test_llama_2 import hf_tensors
from ..support.baking import AS_IS, YARN_16, apply, make_plan
from ..support.corruptions import data, last_bit, verified
from ..support.extent import sample
from .test_meta import release

MODEL = "model.safetensors"


@pytest.fixture(scope="module", params=sample([1, 2], 1))
def meta(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release in one file, and in two."""
    folder = tmp_path_factory.mktemp("release") / "llama"
    release(folder, request.param, dtype="bfloat16")
    return folder


@pytest.fixture(scope="module")
def as_is(meta: Path) -> Path:
    return apply(make_plan(meta, AS_IS, meta.parent / "as-is"))


def stored(meta: Path) -> list[dict[str, Any]]:
    import torch

    return [torch.load(path, weights_only=True) for path in sorted(meta.glob("*.pth"))]


def checkpoint(folder: Path) -> Source:
    source = open_source(str(folder))
    assert isinstance(source, Source)
    return source


def raw(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def test_ranges_are_those_of_the_pth_files(meta: Path, as_is: Path) -> None:
    source, expected = checkpoint(meta), hf_tensors(stored(meta))
    assert source.tensors.keys() == expected.keys()
    start = source.headers[MODEL].data_start
    generator = np.random.default_rng(0)
    for name, tensor in source.tensors.items():
        data = raw(expected[name])
        assert (tensor.shape, tensor.dtype) == (tuple(expected[name].shape), "BF16")
        ranges = [(0, len(data)), *(sorted(generator.integers(0, len(data) + 1, 2).tolist()) for _ in range(6))]
        for first, last in ranges:
            at = start + tensor.start
            assert source.read(MODEL, at + first, at + last) == data[first:last], (name, first, last)
    size = (as_is / MODEL).stat().st_size
    assert source.read(MODEL, 0, size) == (as_is / MODEL).read_bytes()
    with pytest.raises(BadSource, match="ends before byte"):
        source.read(MODEL, 0, size + 1)


def test_an_output_is_compared_with_a_conversion_of_its_source(meta: Path, as_is: Path, tmp_path: Path) -> None:
    out, other = apply(make_plan(meta, YARN_16, tmp_path / "out")), Path(shutil.copytree(as_is, tmp_path / "other"))
    verified(out, meta)
    verified(out, other)
    data(last_bit)(other)
    with pytest.raises(Disagreement, match="of model.safetensors differs from byte"):
        verified(out, other)
    verified(out, other, quick=True)
