"""A real model is inspected, converted, baked in three encodings and as GGUF, and validated in both runtimes.

`scripts/test` runs this by itself, since the weights take half a gigabyte.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

import ropeconv
from ropeconv.engines.transformers import DeviceSpec, TransformersEngine
from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.rule.validation import Validation
from scripts.real_model import RealModel

from ..support.baking import apply, make_plan, validate
from ..support.extent import ALL


def recipe(method: str) -> Recipe:
    return Recipe(REGISTRY[method](4.0))  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def stored(real: RealModel) -> dict[str, Any]:
    """The tensors of the GGUF file, as gguf-py reads them."""
    return {tensor.name: tensor for tensor in gguf.GGUFReader(real.gguf).tensors}


def test_both_files_are_seen_as_the_same_model(real: RealModel) -> None:
    specs = [inspect_source(ropeconv.open_source(str(path))).spec for path in (real.gguf, real.checkpoint)]
    for spec in specs:
        assert (spec.rope_theta, spec.original_context, spec.rotary_dim) == (100_000.0, 8192, 64)
    assert np.array_equal(*(spec.current().inv_freq for spec in specs))


def test_the_checkpoint_has_the_numbers_that_gguf_py_reads(real: RealModel, stored: dict[str, Any]) -> None:
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
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


@pytest.fixture(scope="module")
def patched(real: RealModel) -> TransformersEngine:
    """The source, loaded once, to be patched."""
    return TransformersEngine.load(real.checkpoint, DeviceSpec("cpu", "float32"))


@pytest.mark.parametrize(("method", "encoding"), [("yarn", "native"), ("mixed", "factors"), ("yarn", "weights")])
def test_transformers_computes_the_same_from_a_baked_checkpoint_and_a_patched_model(
    method: str, encoding: str, real: RealModel, patched: TransformersEngine, tmp_path: Path
) -> None:
    plan = make_plan(real.checkpoint, recipe(method), tmp_path / "baked", encoding=encoding)
    assert plan.result.encoding == encoding
    stock = TransformersEngine.load(apply(plan, link=True, fsync=False), DeviceSpec("cpu", "float32"))
    tokenizer = AutoTokenizer.from_pretrained(real.checkpoint)
    ids = tokenizer((real.texts / "class.txt").read_text("utf-8")).input_ids[:160]
    targets = range(1, len(ids))
    undo = patched.patch(plan.schedule, plan.source_spec)
    wanted = patched.token_losses(ids, targets).loss
    undo()
    assert np.abs(stock.token_losses(ids, targets).loss - wanted).max() < 2e-3
    assert np.abs(patched.token_losses(ids, targets).loss - wanted).max() > 0.1


def short(method: str) -> Recipe:
    """As if the model had been trained with 128 tokens, since 8,192 and four times that take minutes."""
    return Recipe(REGISTRY[method](4.0), original_context=128, context=512)  # type: ignore[call-arg]


def test_validate_agrees_on_a_baked_checkpoint_and_not_on_an_edited_one(real: RealModel, tmp_path: Path) -> None:
    baked = apply(make_plan(real.checkpoint, short("mixed"), tmp_path / "baked"), link=True, fsync=False)
    result = validate(baked, real.checkpoint, tokens=64)
    assert result.agrees, result.sentence
    config = json.loads((baked / "config.json").read_text())
    for rope in (config["rope_parameters"], config["rope_scaling"]):
        rope["short_factor"] = rope["long_factor"] = [1.1 * factor for factor in rope["long_factor"]]
    (baked / "config.json").write_text(json.dumps(config))
    assert not validate(baked, real.checkpoint, tokens=64).agrees


@pytest.mark.skipif(not ALL, reason="two minutes; ROPECONV_TESTS=all runs it")
def test_validate_agrees_beyond_the_trained_context(real: RealModel, tmp_path: Path) -> None:
    baked = apply(make_plan(real.checkpoint, recipe("mixed"), tmp_path / "baked"), link=True, fsync=False)
    result = validate(baked, real.checkpoint, tokens=64)
    assert result.agrees, result.sentence


def patched_gguf(real: RealModel, method: str, folder: Path) -> Path:
    return apply(make_plan(real.gguf, short(method), folder / f"{method}.gguf"))


def validated(baked: Path, real: RealModel) -> Validation:
    comparison = ropeconv.Comparison.open(baked, str(real.gguf))
    return ropeconv.validate_gguf(comparison, ropeconv.Settings(tokens=256))


@pytest.mark.parametrize("method", ["yarn", "mixed"])
def test_a_patched_gguf_is_what_llama_cpp_computes(method: str, real: RealModel, tmp_path: Path) -> None:
    result = validated(patched_gguf(real, method, tmp_path), real)
    assert result.agrees, result.sentence


def test_wrong_frequencies_in_a_patched_gguf_are_seen_through_the_noise_of_its_weights(
    real: RealModel, tmp_path: Path
) -> None:
    baked = patched_gguf(real, "mixed", tmp_path)
    divisors = next(one for one in gguf.GGUFReader(baked).tensors if one.name == "rope_freqs.weight")
    stored = np.memmap(baked, "<f4", "r+", int(divisors.data_offset), tuple(int(n) for n in divisors.shape))
    stored[4:12] *= 1.2
    stored.flush()
    assert not validated(baked, real).agrees


def test_a_patched_gguf_differs_from_its_source_in_the_header_only(
    stored: dict[str, Any], extended_gguf: dict[str, Path]
) -> None:
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(extended_gguf["mixed:4"]).tensors}
    assert set(found) - set(stored) == {"rope_freqs.weight"}
    assert all(np.array_equal(found[name].data, tensor.data) for name, tensor in stored.items())
