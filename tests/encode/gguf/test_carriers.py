"""Which other architecture is written, what of the file changes, and what is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import UnsupportedBake
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ...support.baking import apply, make_plan
from ...support.gguf_files import contents, plain_tensors, write

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


def test_a_carrier_that_is_named_is_taken(tmp_path: Path) -> None:
    source = write(tmp_path / "model.gguf", "qwen2")
    for carrier in ("llama", "mistral3"):
        found = make_plan(source, MIXED, tmp_path / "out.gguf", carrier=carrier).result
        assert (found.encoding, found.arch) == ("carrier", carrier)


def test_divisors_of_an_earlier_scaling_become_ones(tmp_path: Path) -> None:
    tensors = {**plain_tensors(), "rope_freqs.weight": np.full(32, 8.0, np.float32)}
    source = write(tmp_path / "model.gguf", tensors=tensors)
    found = make_plan(source, Recipe(REGISTRY["theta"](1e6)), tmp_path / "out.gguf", replace=True).result
    assert found.encoding == "keys"
    assert set(found.edit.changes) == {"rope_freqs.weight"}
    out = apply(make_plan(source, Recipe(REGISTRY["theta"](1e6)), tmp_path / "out.gguf", replace=True))
    assert np.frombuffer(contents(out)["rope_freqs.weight"], np.float32).tolist() == [1.0] * 32
    assert contents(source)["rope_freqs.weight"] != contents(out)["rope_freqs.weight"]


def test_tied_embeddings_are_written_a_second_time_where_the_carrier_does_not_tie_them(tmp_path: Path) -> None:
    keys = {"feed_forward_length": 64}
    source = write(tmp_path / "model.gguf", "qwen2", keys)
    found = contents(apply(make_plan(source, MIXED, tmp_path / "out.gguf", carrier="step35")))
    assert found["output.weight"] == found["token_embd.weight"] == contents(source)["token_embd.weight"]
    own = {**plain_tensors(), "output.weight": np.ones((16, 130), np.float32)}
    source = write(tmp_path / "untied.gguf", "qwen2", keys, own)
    found = contents(apply(make_plan(source, MIXED, tmp_path / "other.gguf", carrier="step35")))
    assert found["output.weight"] == own["output.weight"].tobytes()


@pytest.mark.parametrize("keep_short", [False, True])
def test_the_repair_where_no_carrier_exists(tmp_path: Path, keep_short: bool) -> None:
    source = write(tmp_path / "model.gguf", "starcoder2")
    recipe = Recipe(REGISTRY["mixed"](4.0), keep_short=keep_short)
    with pytest.raises(UnsupportedBake) as problem:
        make_plan(source, recipe, tmp_path / "out.gguf", encoding="tensor")
    words = "theta, linear and yarn fit into its keys"
    assert str(problem.value).endswith(words + (", without --keep-short" if keep_short else ""))
