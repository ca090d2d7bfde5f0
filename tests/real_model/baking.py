"""A real model is inspected, converted, baked in three encodings and as GGUF, and validated in both runtimes.

`scripts/test` runs this by itself, since the weights take half a gigabyte.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors import safe_open

import ropeconv
from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from scripts.real_model import RealModel

from ..baking import apply, make_plan, validate


def recipe(method: str, **options: int) -> Recipe:
    return Recipe(REGISTRY[method](4.0), **options)  # type: ignore[arg-type]


def test_both_files_are_seen_as_the_same_model(real: RealModel) -> None:
    specs = [inspect_source(ropeconv.open_source(str(path))).spec for path in (real.gguf, real.checkpoint)]
    for spec in specs:
        assert (spec.rope_theta, spec.original_context, spec.rotary_dim) == (100_000.0, 8192, 64)
    assert np.array_equal(*(spec.current().inv_freq for spec in specs))


def test_the_checkpoint_has_the_numbers_that_gguf_py_reads(real: RealModel) -> None:
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(real.gguf).tensors}
    with safe_open(real.checkpoint / "model.safetensors", "np") as checkpoint:
        for theirs, ours in names.items():
            tensor = stored[theirs]
            assert np.array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type), checkpoint.get_tensor(ours))
        # llama.cpp's order of the rows of a query: the two halves of each head interleaved
        tensor = stored["blk.3.attn_q.weight"]
        query = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        halves = query.reshape(9, 32, 2, 576).swapaxes(1, 2).reshape(576, 576)
        assert np.array_equal(halves, checkpoint.get_tensor("model.layers.3.self_attn.q_proj.weight"))
        assert not np.array_equal(query, halves)


def test_the_tokenizer_splits_the_manual_of_python_as_llama_cpp_does(real: RealModel) -> None:
    llama = pytest.importorskip("llama_cpp")
    from transformers import AutoTokenizer

    llama.llama_backend_init()
    settings = llama.llama_model_default_params()
    settings.vocab_only = True
    model = llama.llama_model_load_from_file(str(real.gguf).encode(), settings)
    vocabulary = llama.llama_model_get_vocab(model)
    tokenizer = AutoTokenizer.from_pretrained(real.checkpoint)
    texts = [path.read_text("utf-8") for path in sorted(real.texts.iterdir())]
    assert len(texts) > 50
    for text in texts:
        data = text.encode()
        room = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), False, True)
        assert tokenizer(text, verbose=False).input_ids == list(room[:count])
    llama.llama_free_model(model)


@pytest.mark.parametrize(("method", "encoding"), [("yarn", "native"), ("mixed", "factors"), ("yarn", "weights")])
def test_a_baked_checkpoint_is_what_transformers_computes(
    method: str, encoding: str, real: RealModel, tmp_path: Path
) -> None:
    plan = make_plan(real.checkpoint, recipe(method), tmp_path / "baked", encoding=encoding)
    baked = apply(plan, link=True, fsync=False)
    result = validate(baked, real.checkpoint, tokens=16)
    assert result.agrees, result.sentence


def test_a_patched_gguf_is_what_llama_cpp_computes(real: RealModel, tmp_path: Path) -> None:
    # as if it had been trained with 128 tokens: 8,192 and four times that take minutes
    asked = dataclasses.replace(recipe("mixed"), original_context=128)
    baked = apply(make_plan(real.gguf, asked, tmp_path / "mixed.gguf", context=512))
    comparison = ropeconv.Comparison.open(baked, str(real.gguf))
    result = ropeconv.validate_gguf(comparison, ropeconv.Settings(tokens=384))
    assert result.agrees, result.sentence


def test_a_patched_gguf_differs_from_its_source_in_the_header_only(
    real: RealModel, extended_gguf: dict[str, Path]
) -> None:
    source = {tensor.name: tensor for tensor in gguf.GGUFReader(real.gguf).tensors}
    for name in ("linear:4", "yarn:4", "mixed:4"):
        found = {tensor.name: tensor for tensor in gguf.GGUFReader(extended_gguf[name]).tensors}
        assert set(found) - set(source) == ({"rope_freqs.weight"} if name == "mixed:4" else set())
        assert all(np.array_equal(found[key].data, tensor.data) for key, tensor in source.items())
