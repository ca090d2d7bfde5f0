"""Families of which some models are another GGUF architecture: Granite 4, Bamba and EmbeddingGemma."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ropeconv.bake.gguf import ExportPlan
from ropeconv.convert.to_gguf.stock import find_converter
from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile

from ...support.baking import AS_IS, MIXED, YARN, make_plan, recipe_of
from ...support.embedding_gemma import (
    WIDTH,
    add_modules,
    add_projection,
    embedding_gemma,
    with_projections,
)
from ...support.in_process import command
from ...support.llamacpp import (
    bake,
    checkpoint,
    is_computed,
    sequence,
)
from ...support.models import TRAINED
from ...support.optional import MISSING, skip
from ...support.stock_tree import published
from ...support.tiny_gguf import hidden_states
from .test_stock import APART, OURS_ALONE, contents

ALL_ATTENTION: dict[str, dict[str, Any]] = {
    "granite": {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 96},
    "granitemoe": {"shared_intermediate_size": 64},
}
"""Granite 4 without state spaces, by its architecture in llama.cpp: dense, and with experts."""


def granite4(arch: str, folder: Path) -> Path:
    layers = ["attention", "attention"]
    scales = {"embedding_multiplier": 1.2, "logits_scaling": 1.5, "residual_multiplier": 0.8}
    settings = {"attention_multiplier": 0.1, "layer_types": layers, **scales}
    return checkpoint("granitemoehybrid", folder, **settings, **ALL_ATTENTION[arch])


def by_the_converter(source: Path, tree: Path, out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and keys that llama.cpp's converter writes for a checkpoint, without ropeconv."""
    converter = find_converter(tree)
    assert converter is not None
    converter.convert(source, out, "f32")
    return contents(out)


def assert_keys_of_the_converter(ours: dict[str, Any], stock: dict[str, Any], *but: str) -> None:
    """Every key of the converter is here with its value, but those that end as named."""
    assert len(stock) > 20
    for name, value in stock.items():
        if not name.startswith(APART) and not name.endswith(but):
            assert ours.get(name) == value, name


# Granite 4


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("arch", ALL_ATTENTION)
def test_granite_4_without_state_spaces_is_the_file_of_the_converter(
    arch: str, tree: Path, tmp_path: Path
) -> None:
    source = granite4(arch, tmp_path / "Tiny")
    bake(source, AS_IS, tmp_path / "ours.gguf")
    our_tensors, our_keys = contents(tmp_path / "ours.gguf")
    tensors, keys = by_the_converter(source, tree, tmp_path / "stock.gguf")
    assert our_keys["general.architecture"] == arch
    assert tensors == our_tensors
    # the converter also writes the sizes of state spaces, which these architectures do not read
    unread = ("head_count_kv", ".expert_used_count", ".expert_count", "shared_feed_forward_length")
    states = tuple(name for name in keys if ".ssm." in name)
    assert len(states) == 5
    assert_keys_of_the_converter(our_keys, keys, *states, *unread)


@pytest.mark.parametrize("arch", ALL_ATTENTION)
def test_granite_4_without_state_spaces_is_computed(arch: str, tmp_path: Path) -> None:
    if "llama_cpp" in MISSING:
        skip("llama_cpp")
    source = granite4(arch, tmp_path / "Tiny")
    for name, method in {"yarn": YARN, "mixed": MIXED}.items():
        is_computed(source, method, tmp_path / f"{name}.gguf")


@pytest.mark.usefixtures("quick")
def test_state_spaces_beside_rope_have_the_tensors_of_the_converter(
    tree: Path, tmp_path: Path
) -> None:
    """The converter says that nothing rotates, since published models with state spaces do not."""
    source = published("granitemoehybrid", tmp_path / "Tiny")
    bake(source, AS_IS, tmp_path / "ours.gguf")
    our_tensors, our_keys = contents(tmp_path / "ours.gguf")
    tensors, keys = by_the_converter(source, tree, tmp_path / "stock.gguf")
    assert tensors == our_tensors
    assert our_keys["granitehybrid.rope.scaling.finetuned"] is True
    assert keys["granitehybrid.rope.scaling.finetuned"] is False
    assert_keys_of_the_converter(our_keys, keys, "finetuned", "context_length")


@pytest.mark.usefixtures("quick")
def test_half_of_each_head_of_bamba_is_reordered(tree: Path, tmp_path: Path) -> None:
    """The converter reorders whole heads, which pairs other dimensions than those that rotate."""
    source = published("bamba", tmp_path / "Tiny")
    bake(source, AS_IS, tmp_path / "ours.gguf")
    ours, _ = contents(tmp_path / "ours.gguf")
    tensors, _ = by_the_converter(source, tree, tmp_path / "stock.gguf")
    differing = {name for name in ours if ours[name] != tensors[name]}
    assert differing == {f"blk.{layer}.attn_{part}.weight" for layer in (1, 2) for part in "qk"}

    # 32 of 64 rows rotate: row 16 of a head is the partner of row 0
    weights = torch_weights(source)["model.layers.1.self_attn.k_proj.weight"]
    rows = np.frombuffer(ours["blk.1.attn_k.weight"][2], "<f4").reshape(64, -1)
    assert np.array_equal(rows[:4], weights[[0, 16, 1, 17]])
    assert np.array_equal(rows[32:], weights[32:])


def torch_weights(folder: Path) -> Any:
    import safetensors.numpy

    return safetensors.numpy.load_file(folder / "model.safetensors")


# EmbeddingGemma


def test_embedding_gemma_reads_in_both_directions(tmp_path: Path) -> None:
    if "llama_cpp" in MISSING:
        skip("llama_cpp")
    is_computed(embedding_gemma(tmp_path / "Tiny"), YARN, tmp_path / "out.gguf")


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_a_decoder_without_a_causal_mask_reads_in_both_directions(
    model_type: str, tmp_path: Path
) -> None:
    if "llama_cpp" in MISSING:
        skip("llama_cpp")
    source = checkpoint(model_type, tmp_path / "Tiny", is_causal=False, tie_word_embeddings=True)
    shown = command(tmp_path, "inspect", source, code=0).stdout
    assert "encoder" in shown
    is_computed(source, YARN, tmp_path / "out.gguf")
    assert contents(tmp_path / "out.gguf")[1][f"{model_type}.attention.causal"] is False
    assert "encoder" in command(tmp_path, "inspect", "out.gguf", code=0).stdout

    # the control: the last token sees the same with both masks, and the first one does not
    causal = tmp_path / "causal.gguf"
    without_key = Edit(dropped=frozenset({f"{model_type}.attention.causal"}))
    write_new(GgufFile.open(tmp_path / "out.gguf"), 0, without_key, causal)
    tokens = sequence(TRAINED)
    right = hidden_states(tmp_path / "out.gguf", tokens)
    wrong = hidden_states(causal, tokens)
    assert np.abs(right[0] - wrong[0]).max() > 0.1


@pytest.mark.parametrize("model_type", ["gemma3_text", "gemma2"])
def test_windows_without_a_causal_mask_are_refused(model_type: str, tmp_path: Path) -> None:
    source = checkpoint(model_type, tmp_path / "Tiny", is_causal=False)
    with pytest.raises(UnsupportedBake, match="layers with a window"):
        bake(source, YARN, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
    assert "`ropeconv apply --to gguf` refuses it" in inspected_words(source)


def inspected_words(source: Path) -> str:
    """The output of `inspect` in one line."""
    return " ".join(command(source, "inspect", source, code=0).stdout.split())


@pytest.mark.parametrize("value", [True, "all"])
def test_inspect_and_a_conversion_agree_about_embedding_gemma(
    value: object, tmp_path: Path
) -> None:
    source = embedding_gemma(tmp_path / "Tiny")
    config = json.loads((source / "config.json").read_text())
    for is_causal in ({}, {"is_causal": False}):
        settings = {**config, "use_bidirectional_attention": value, **is_causal}
        (source / "config.json").write_text(json.dumps(settings))
        words = inspected_words(source)
        assert "encoder" in words
        assert "refuses it" not in words
        plan = make_plan(source, YARN, tmp_path / "out.gguf", to="gguf", outtype="f32")
        assert isinstance(plan, ExportPlan)
        assert plan.start.get("general.architecture") == "gemma-embedding"


@pytest.mark.usefixtures("quick")
def test_embedding_gemma_is_the_file_of_the_converter(tree: Path, tmp_path: Path) -> None:
    source, _, _ = with_projections(tmp_path / "Tiny")
    plan = bake(source, YARN, tmp_path / "ours.gguf")
    bake(source, YARN, tmp_path / "stock.gguf", converter=tree)
    our_tensors, our_keys = contents(tmp_path / "ours.gguf")
    tensors, keys = contents(tmp_path / "stock.gguf")
    assert list(our_tensors)[:2] == ["dense_2.weight", "dense_3.weight"]
    assert our_keys["gemma-embedding.dense_2_feat_out"] == 192
    assert our_keys["gemma-embedding.pooling_type"] == gguf.PoolingType.MEAN
    assert tensors == our_tensors
    assert_keys_of_the_converter(our_keys, keys)
    allowed = {name.format(arch="gemma-embedding") for name in OURS_ALONE}
    only_here = {name for name in our_keys if name not in keys and not name.startswith(APART)}
    assert only_here <= allowed
    assert not any("Dense" in warning for warning in plan.warnings)


def test_llama_cpp_multiplies_by_the_projections(tmp_path: Path) -> None:
    if "llama_cpp" in MISSING:
        skip("llama_cpp")
    plain = embedding_gemma(tmp_path / "plain")
    source, second, third = with_projections(tmp_path / "Tiny")
    bake(plain, AS_IS, tmp_path / "plain.gguf")
    bake(source, AS_IS, tmp_path / "out.gguf")
    tokens = sequence(2 * TRAINED)
    states = torch.from_numpy(hidden_states(tmp_path / "plain.gguf", tokens))
    projected = hidden_states(tmp_path / "out.gguf", tokens)
    expected = (states @ second.T @ third.T).numpy()
    np.testing.assert_allclose(projected, expected, rtol=1e-3, atol=1e-4)
    # the projections in the other order would not fit, and without them it is another result
    assert np.abs(projected - states.numpy()).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bias": True}, "bias = True"),
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, "Tanh"),
        ({"out_features": 64}, "no linear.weight of 64 rows"),
    ],
)
def test_other_projections_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = embedding_gemma(tmp_path / "Tiny")
    add_modules(source, {"pooling_mode_mean_tokens": True}, ("2_Dense",))
    add_projection(source, "2_Dense", torch.ones((WIDTH, WIDTH)), **changes)
    with pytest.raises((BadSource, UnsupportedBake), match=words):
        bake(source, recipe_of("yarn", 4.0), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_projections_in_other_folders_are_refused(tmp_path: Path) -> None:
    source = embedding_gemma(tmp_path / "Tiny")
    add_modules(source, {"pooling_mode_mean_tokens": True}, ("3_Dense",))
    add_projection(source, "3_Dense", torch.ones((WIDTH, WIDTH)))
    with pytest.raises(UnsupportedBake, match="2_Dense"):
        bake(source, YARN, tmp_path / "out.gguf")


def test_a_gemma_3_that_predicts_tokens_stays_one(tmp_path: Path) -> None:
    source = checkpoint("gemma3_text", tmp_path / "Tiny")
    config = json.loads((source / "config.json").read_text())
    assert not config.get("use_bidirectional_attention")
    bake(source, YARN, tmp_path / "out.gguf")
    keys = contents(tmp_path / "out.gguf")[1]
    assert keys["general.architecture"] == "gemma3"
