"""What cannot be written as another architecture is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import UnsupportedBake
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ...baking import make_plan
from ...gguf_files import plain_tensors, write

MIXED = Recipe(REGISTRY["mixed"](4.0))


def refusal(folder: Path, **given: Any) -> str:
    source = write(folder / "model.gguf", "qwen2", **given)
    with pytest.raises(UnsupportedBake) as problem:
        make_plan(source, MIXED, folder / "out.gguf", carrier="llama")
    assert not (folder / "out.gguf").exists()
    return str(problem.value)


def test_fused_projections(tmp_path: Path) -> None:
    fused = {**plain_tensors(), "blk.0.attn_qkv.weight": np.zeros((192, 128), np.float16)}
    assert "its projections are fused; choose another method" in refusal(tmp_path, tensors=fused)


def test_layers_with_different_heads(tmp_path: Path) -> None:
    heads = {"attention.head_count_kv": [1, 2]}
    assert "its layers have different heads; choose another method" in refusal(tmp_path, extra=heads)
