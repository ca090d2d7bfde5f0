"""Embedding models keep the pooling that sentence-transformers has beside them, as llama.cpp applies
it.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ropeconv.errors import BadSource, UnsupportedBake

from ...support.baking import recipe_of
from ...support.embedding_gemma import add_modules
from ...support.llamacpp import bake, checkpoint

YARN = recipe_of("yarn", 4.0)


def old_config(mode: str) -> dict[str, Any]:
    """The switches of sentence-transformers before version 5."""
    names = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    return {"word_embedding_dimension": 64} | {
        f"pooling_mode_{name}": name == mode for name in names
    }


POOLINGS: dict[str, tuple[dict[str, Any], gguf.PoolingType]] = {
    "mean": (old_config("mean_tokens"), gguf.PoolingType.MEAN),
    "first": (old_config("cls_token"), gguf.PoolingType.CLS),
    "last": (old_config("lasttoken"), gguf.PoolingType.LAST),
    "in one key": ({"pooling_mode": "lasttoken"}, gguf.PoolingType.LAST),
}


@pytest.mark.parametrize("name", POOLINGS)
def test_the_key_is_that_of_gguf_py(name: str, tmp_path: Path) -> None:
    config, expected = POOLINGS[name]
    source = add_modules(checkpoint("qwen2", tmp_path / "model"), config)
    bake(source, YARN, tmp_path / "out.gguf")
    field = gguf.GGUFReader(tmp_path / "out.gguf").fields["qwen2.pooling_type"]
    assert (field.contents(), field.types) == (expected.value, [gguf.GGUFValueType.UINT32])


def embeddings(path: Path) -> Any:
    """The embedding of a text in llama.cpp, or one for each token without a pooling."""
    import llama_cpp

    model = llama_cpp.Llama(str(path), embedding=True, verbose=False, n_ctx=256, n_threads=1)
    try:
        return np.array(model.embed("some words of a text", normalize=False))
    finally:
        model.close()


def test_llama_cpp_pools_the_states_of_the_tokens(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    plain = checkpoint("llama", tmp_path / "plain")
    bake(plain, YARN, tmp_path / "plain.gguf")
    of_tokens = embeddings(tmp_path / "plain.gguf")
    assert of_tokens.ndim == 2
    for name, row in {"mean": of_tokens.mean(0), "last": of_tokens[-1]}.items():
        source = add_modules(checkpoint("llama", tmp_path / name), POOLINGS[name][0])
        bake(source, YARN, tmp_path / f"{name}.gguf")
        np.testing.assert_allclose(embeddings(tmp_path / f"{name}.gguf"), row, rtol=1e-4, atol=1e-5)


def test_a_model_without_modules_has_no_pooling(tmp_path: Path) -> None:
    bake(checkpoint("qwen2", tmp_path / "model"), YARN, tmp_path / "out.gguf")
    assert "qwen2.pooling_type" not in gguf.GGUFReader(tmp_path / "out.gguf").fields


def test_a_projection_that_is_left_out_is_said(tmp_path: Path) -> None:
    source = add_modules(
        checkpoint("qwen2", tmp_path / "model"), old_config("mean_tokens"), ("2_Dense",)
    )
    plan = bake(source, YARN, tmp_path / "out.gguf")
    assert any("Dense" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    "config",
    [
        old_config("max_tokens"),
        old_config("none"),
        {"pooling_mode": ["mean", "cls"]},
        {"pooling_mode": "weightedmean"},
        old_config("cls_token") | {"pooling_mode_mean_tokens": True},
    ],
)
def test_a_pooling_that_llama_cpp_does_not_have_is_refused(
    config: dict[str, Any], tmp_path: Path
) -> None:
    source = add_modules(checkpoint("qwen2", tmp_path / "model"), config)
    with pytest.raises(UnsupportedBake, match="pooling"):
        bake(source, YARN, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("modules.json", "{}", "list of modules"),
        ("modules.json", "[1]", "without a type"),
        ("modules.json", '[{"type": 3}]', "without a type"),
        ("modules.json", '[{"type": "x.Pooling", "path": "../../etc"}]', "missing"),
        ("1_Pooling/config.json", "[]", "config.json"),
    ],
)
def test_damaged_files_are_refused(name: str, text: str, words: str, tmp_path: Path) -> None:
    source = add_modules(checkpoint("qwen2", tmp_path / "model"), old_config("mean_tokens"))
    (source / name).write_text(text)
    with pytest.raises(BadSource, match=words):
        bake(source, YARN, tmp_path / "out.gguf")
