"""Families whose checkpoints run on code of their own: only their GGUF files are extended, which
llama.cpp's converter makes.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropeconv.convert.to_gguf.stock import StockConverter
from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.models.config import cached_layers, detect
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.read_config import read_spec
from scripts.llamacpp.stock_matrix import row_of_mlx

from ..conftest import Run
from ..convert.to_gguf.conftest import server, tree
from ..convert.to_gguf.test_stock import APART, contents
from ..support.baking import AS_IS, YARN, apply, make_plan
from ..support.converter_server import Convert
from ..support.mlx_models import (
    MODELS,
    MlxLm,
    config_of,
    random_weights,
    with_published_names,
    write_checkpoint,
)

__all__ = ["server", "tree"]
MLX_PYTHON = os.environ.get("ROPECONV_MLX_LM_PYTHON")
READ = {
    "internlm2": (64, 10000.0, "gg"),
    "exaone": (64, 10000.0, "gg"),
    "minicpm": (64, 10000.0, "gg"),
    "qwen": (64, 10000.0, "gg"),
    "deepseek": (64, 10000.0, "gg"),
    "bailing_moe": (64, 10000.0, "gg"),
    "bailing_moe_v2": (32, 10000.0, "gg"),
    "openelm": (64, 10000.0, "gg"),
    "nemotron-nas": (64, 10000.0, "gnng"),
    "nanbeige": (64, 10000.0, "gg"),
    "talkie": (64, 10000.0, "gg"),
    "muse_glimmer": (64, 10000.0, "nggg"),
    "spark2_5": (32, 10000.0, "lg"),
    "plamo3": (64, 10000.0, "lglg"),
    "plamo": (128, 10000.0, "gg"),
}
"""By model: dimensions that rotate, base, and the kinds of the layers (global, local, none), as the
code of mlx-lm 0.32.2 has them."""
LAYER = "transformer.h.{}."
LARGE = "plamo"
"""Its widths are those of the published model, so that only the record has its logits."""


def shapes_of(
    outside: dict[str, list[int]], layer: str, inside: dict[str, list[int]]
) -> dict[str, list[int]]:
    """The shapes of a model of two layers.

    Args:
        outside: Of the weights outside the layers.
        layer: The prefix of a layer, with its number as `{}`.
        inside: Of the weights of each layer, without the prefix.
    """
    shapes = dict(outside)
    for number in range(2):
        for name, shape in inside.items():
            shapes[layer.format(number) + name] = shape
    return shapes


def exaone(folder: Path) -> Path:
    """A tiny EXAONE 3 with the names of LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct."""
    outside = {
        "transformer.wte.weight": [320, 128],
        "transformer.ln_f.weight": [128],
        "lm_head.weight": [320, 128],
    }
    inside = {
        "attn.attention.q_proj.weight": [128, 128],
        "attn.attention.k_proj.weight": [64, 128],
        "attn.attention.v_proj.weight": [64, 128],
        "attn.attention.out_proj.weight": [128, 128],
        "mlp.c_fc_0.weight": [96, 128],
        "mlp.c_fc_1.weight": [96, 128],
        "mlp.c_proj.weight": [128, 96],
        "ln_1.weight": [128],
        "ln_2.weight": [128],
    }
    shapes = shapes_of(outside, LAYER, inside)
    write_checkpoint(folder, config_of("exaone"), random_weights(shapes))
    return folder


def minicpm(folder: Path) -> Path:
    """A tiny MiniCPM 1 or 2 with the names of openbmb/MiniCPM-2B-sft-bf16."""
    outside = {
        "model.embed_tokens.weight": [320, 128],
        "model.norm.weight": [128],
        "lm_head.weight": [320, 128],
    }
    inside = {
        "self_attn.q_proj.weight": [128, 128],
        "self_attn.k_proj.weight": [64, 128],
        "self_attn.v_proj.weight": [64, 128],
        "self_attn.o_proj.weight": [128, 128],
        "mlp.gate_proj.weight": [96, 128],
        "mlp.up_proj.weight": [96, 128],
        "mlp.down_proj.weight": [128, 96],
        "input_layernorm.weight": [128],
        "post_attention_layernorm.weight": [128],
    }
    shapes = shapes_of(outside, "model.layers.{}.", inside)
    write_checkpoint(folder, config_of("minicpm"), random_weights(shapes))
    return folder


def internlm2(folder: Path) -> Path:
    """A tiny InternLM 2 with the names of internlm/internlm2_5-7b-chat, and two groups of heads."""
    outside = {
        "model.tok_embeddings.weight": [320, 128],
        "model.norm.weight": [128],
        "output.weight": [320, 128],
    }
    inside = {
        "attention.wqkv.weight": [256, 128],
        "attention.wo.weight": [128, 128],
        "attention_norm.weight": [128],
        "ffn_norm.weight": [128],
        "feed_forward.w1.weight": [96, 128],
        "feed_forward.w3.weight": [96, 128],
        "feed_forward.w2.weight": [128, 96],
    }
    shapes = shapes_of(outside, "model.layers.{}.", inside)
    config = config_of("internlm2") | {"num_attention_heads": 4, "num_key_value_heads": 2}
    write_checkpoint(folder, config, random_weights(shapes))
    return folder


CONVERTED = {"exaone": exaone, "internlm2": internlm2, "minicpm": minicpm}
"""Models with a conversion of ropeconv's own, and what makes a tiny one."""


@pytest.mark.parametrize("name", MODELS)
def test_the_published_config_is_read(name: str) -> None:
    rotary_dim, base, kinds = READ[name]
    config = config_of(name)
    spec = read_spec(config, detect(config))
    assert spec.rotary_dim == rotary_dim
    assert spec.rope_theta == base
    assert spec.original_context == 64
    assert "".join(kind[0] for kind in spec.layers) == kinds


def test_local_layers_have_a_base_of_their_own() -> None:
    for name in ("plamo3", "spark2_5"):
        config = config_of(name)
        inv_freq = read_spec(config, detect(config)).local_inv_freq
        assert inv_freq is not None
        np.testing.assert_allclose(inv_freq[1], 20000.0 ** (-1 / 32), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "numbers"), [("openelm", [64, 128]), ("nemotron-nas", [64, 128]), ("exaone", [64, 64])]
)
def test_layers_keep_the_heads_that_the_config_lists(name: str, numbers: list[int]) -> None:
    config = config_of(name)
    cached = cached_layers(config, detect(config))
    assert cached is not None
    kept = [layers.keys for layers in cached[0] for _ in range(layers.count)]
    assert sorted(kept) == numbers


def test_layers_that_run_twice_keep_twice_as_much() -> None:
    config = config_of("nanbeige")
    cached = cached_layers(config, detect(config))
    assert cached is not None
    assert sum(layers.count for layers in cached[0]) == 4


def test_heads_are_shared_as_the_config_says() -> None:
    """40 heads, 8 of which share keys; num_key_value_heads is wrong in the published config."""
    config = config_of("plamo")
    assert config["num_key_value_heads"] == 40
    cached = cached_layers(config, detect(config))
    assert cached is not None
    assert [layers.keys for layers in cached[0]] == [5 * 128]


def test_layers_without_attention_keep_nothing() -> None:
    config = config_of("nemotron-nas")
    assert sum(block["attention"]["no_op"] for block in config["block_configs"]) == 2
    cached = cached_layers(config, detect(config))
    assert cached is not None
    layers, states = cached
    assert sum(layer.count for layer in layers) == 2
    assert states == 0


def test_deci_lists_its_key_heads() -> None:
    config = config_of("nemotron-nas")
    del config["block_configs"]
    config |= {"model_type": "deci", "num_key_value_heads_per_layer": [2, 1, 1, 1]}
    cached = cached_layers(config, detect(config))
    assert cached is not None
    assert {layer.keys: layer.count for layer in cached[0]} == {128: 1, 64: 3}


def test_the_default_base_of_nemotron_is_that_of_llama() -> None:
    """Its DeciLMConfig extends LlamaConfig; mlx-lm has another default, 500000."""
    config = config_of("nemotron-nas")
    del config["rope_theta"]
    assert read_spec(config, detect(config)).rope_theta == 10000.0


GROUP = "attention.n_heads_in_group"
CORRECTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no group": ("nemotron-nas", {GROUP: 0}, GROUP),
    "half a head": ("nemotron-nas", {GROUP: 1.5}, GROUP),
    "a text": ("nemotron-nas", {GROUP: "2"}, GROUP),
    "heads that do not divide": ("nemotron-nas", {GROUP: 3}, "2 heads"),
    "attention and none": ("nemotron-nas", {"attention.no_op": True}, "attention.no_op"),
    "a window": ("nemotron-nas", {"attention.window_length": 16}, "window_length"),
    "no blocks": ("nemotron-nas", {"block_configs": []}, "0 entries in block_configs"),
    "a block": ("nemotron-nas", {"block_configs": {}}, "block_configs = {}"),
    "names of blocks": ("nemotron-nas", {"block_configs": ["a"] * 4}, "block_configs = ['a'"),
    "a head": ("nemotron-nas", {"num_key_value_heads_per_layer": [1]}, "1 entries"),
    "no list": ("openelm", {"num_kv_heads": 2}, "num_kv_heads = 2"),
    "no heads": ("openelm", {"num_kv_heads": None}, "0 entries in num_kv_heads"),
    "a short list": ("openelm", {"num_query_heads": [2]}, "1 entries in num_query_heads"),
    "keys that do not divide": ("openelm", {"num_query_heads": [2, 3]}, "3 heads"),
    "half a head that rotates": ("qwen", {"rotary_pct": 0.5}, "rotary_pct = 0.5"),
    "two heads that rotate": ("qwen", {"rotary_pct": 2}, "rotary_pct = 2"),
    "runs by two keys": ("nanbeige", {"loop_loss_weights": [0.5, 0.5]}, "3 times"),
    "shared keys": ("nanbeige", {"loop_share_kv": True}, "loop_share_kv"),
    "attention over depth": ("nanbeige", {"enable_depth_attention": True}, "depth_attention"),
    "yarn of its own": ("plamo3", {"rope_scaling_factor": 4}, "rope_scaling_factor = 4"),
    "two windows": ("plamo3", {"sliding_window": 32}, "sliding_window = 32"),
    "no rope": ("spark2_5", {"rope_parameters": None}, "'sliding_attention'"),
    "one rope": ("spark2_5", {"rope_parameters": {"sliding_attention": {}}}, "'full_attention'"),
    "an unknown layer": ("spark2_5", {"layer_types": ["chunked", "full_attention"]}, "'chunked'"),
}
"""A model, changed keys (those with a dot in its last block), and what the message names."""
ACCEPTED: dict[str, tuple[str, dict[str, Any]]] = {
    "the heads as published": ("nemotron-nas", {"num_key_value_heads": None}),
    "whole heads": ("qwen", {"rotary_pct": 1.0}),
    "one number of runs": ("nanbeige", {"loop_loss_weights": [0.5], "loop_share_kv": False}),
    "no yarn": ("plamo3", {"rope_scaling_factor": 1}),
    "the same window": ("plamo3", {"sliding_window": 512}),
    "no types": ("spark2_5", {"layer_types": None}),
}


def changed(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A config of a table in MODELS with other values; keys with a dot are in its last block."""
    config = config_of(name)
    for key, value in changes.items():
        place, _, inner = key.rpartition(".")
        part = config["block_configs"][-1][place] if place else config
        part[inner] = value
    return config


@pytest.mark.parametrize("case", CORRECTED)
def test_a_wrong_config_is_named_with_its_repair(case: str) -> None:
    name, changes, words = CORRECTED[case]
    with pytest.raises(BadSource, match=re.escape(words)) as refused:
        detect(changed(name, changes))
    sentence, _, repair = str(refused.value).partition("; ")
    assert sentence.startswith("config.json has ")
    assert repair


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_right_config_is_not_refused(case: str) -> None:
    """The negative control of the one above."""
    config = changed(*ACCEPTED[case])
    assert read_spec(config, detect(config)).original_context == 64


def test_a_folder_of_safetensors_is_refused(tmp_path: Path) -> None:
    source = exaone(tmp_path / "Tiny")
    with pytest.raises(UnsupportedBake, match="--to gguf"):
        make_plan(source, YARN, tmp_path / "out")


def test_inspect_says_that_it_is_extended_only_as_gguf(tmp_path: Path, run: Run) -> None:
    exaone(tmp_path / "Tiny")
    shown = run("inspect", "Tiny").stdout
    assert "ropeconv extends EXAONE 3, 3.5 only as GGUF" in shown
    assert "apply Tiny --yarn 256 --to gguf --converter" in shown

    # the negative control: a family that no output extends
    config = json.loads((tmp_path / "Tiny" / "config.json").read_text())
    config |= {"model_type": "chatglm", "multi_query_group_num": 1, "seq_length": 64}
    (tmp_path / "Tiny" / "config.json").write_text(json.dumps(config))
    shown = run("inspect", "Tiny").stdout
    assert "ropeconv cannot extend" in shown
    assert "Next:" not in shown


def test_the_converter_says_which_key_is_absent(tmp_path: Path, tree: Path) -> None:
    """TalkieModel in conversion/talkie.py reads head_dim, which has a default in mlx-lm."""
    folder = tmp_path / "Tiny"
    config = config_of("talkie")
    del config["head_dim"]
    shapes = {"model.blocks.0.attn.attn_query.weight": [256, 128]}
    write_checkpoint(folder, config, random_weights(shapes))
    with pytest.raises(RopeconvError, match="add head_dim to config.json"):
        make_plan(folder, YARN, tmp_path / "out.gguf", to="gguf", converter=tree)


def test_a_length_by_two_keys_is_that_of_training(
    tree: Path, server: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen 1 was trained on seq_length; the converter writes max_position_embeddings."""
    monkeypatch.setattr(StockConverter, "convert", server)
    config = config_of("qwen") | {"max_position_embeddings": 256}
    shapes = {"transformer.wte.weight": [320, 128], "transformer.ln_f.weight": [128]}
    shapes["lm_head.weight"] = [320, 128]
    for number in range(2):
        layer = LAYER.format(number)
        shapes[f"{layer}attn.c_attn.weight"] = [384, 128]
        shapes[f"{layer}attn.c_attn.bias"] = [384]
        shapes[f"{layer}attn.c_proj.weight"] = [128, 128]
        shapes[f"{layer}mlp.w1.weight"] = [96, 128]
        shapes[f"{layer}mlp.w2.weight"] = [96, 128]
        shapes[f"{layer}mlp.c_proj.weight"] = [128, 96]
        shapes[f"{layer}ln_1.weight"] = [128]
        shapes[f"{layer}ln_2.weight"] = [128]
    source = tmp_path / "Tiny"
    write_checkpoint(source, config, random_weights(shapes))
    lengths = {}
    for name, recipe in (("as-is", AS_IS), ("yarn", YARN)):
        out = tmp_path / f"{name}.gguf"
        apply(make_plan(source, recipe, out, to="gguf", outtype="f32", converter=tree))
        file = GgufFile.open(out)
        original = file.get("qwen.rope.scaling.original_context_length")
        lengths[name] = (file.get("qwen.context_length"), original)
    assert lengths == {"as-is": (64, None), "yarn": (256, 64)}


def test_other_refused_families_stay_refused_as_gguf(tmp_path: Path) -> None:
    """The negative control: ChatGLM, whose old GGUF form nobody has compared."""
    source = exaone(tmp_path / "Tiny")
    config = json.loads((source / "config.json").read_text())
    config |= {"model_type": "chatglm", "multi_query_group_num": 1, "seq_length": 64}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedBake, match="custom code"):
        make_plan(source, YARN, tmp_path / "out.gguf", to="gguf")


def test_the_converter_gets_the_key_that_it_reads(
    tree: Path, server: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """conversion/exaone.py reads no layer_norm_epsilon, without which llama.cpp refuses the file."""
    monkeypatch.setattr(StockConverter, "convert", server)
    source = exaone(tmp_path / "Tiny")

    # the code of EXAONE 3 does not read the key that the converter prefers
    config = json.loads((source / "config.json").read_text()) | {"rms_norm_eps": 0.01}
    (source / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out.gguf"
    apply(make_plan(source, YARN, out, to="gguf", outtype="f32", converter=tree))
    file = GgufFile.open(out)
    assert file.get("general.architecture") == "exaone"
    assert file.get("exaone.attention.layer_norm_rms_epsilon") == pytest.approx(1e-5)
    assert file.get("exaone.rope.scaling.factor") == 4.0


def test_models_with_a_conversion_are_compared_with_that_of_the_converter() -> None:
    assert {name for name in MODELS if detect(config_of(name)).gguf is not None} == set(CONVERTED)


@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.parametrize("recipe", [AS_IS, YARN], ids=["as-is", "yarn"])
def test_ropeconv_writes_the_bytes_of_the_converter(
    name: str,
    recipe: Recipe,
    tree: Path,
    server: Convert,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StockConverter, "convert", server)
    source = CONVERTED[name](tmp_path / "Tiny")
    ours, stock = tmp_path / "ours.gguf", tmp_path / "stock.gguf"
    apply(make_plan(source, recipe, ours, to="gguf", outtype="f32"))
    apply(make_plan(source, recipe, stock, to="gguf", outtype="f32", converter=tree))
    our_tensors, our_keys = contents(ours)
    tensors, keys = contents(stock)
    assert our_tensors == tensors
    assert len(tensors) > 20
    differing = [
        key for key in keys if not key.startswith(APART) and our_keys.get(key) != keys[key]
    ]
    assert differing == []


@pytest.mark.parametrize("key", ["scale_emb", "scale_depth", "dim_model_base"])
def test_multipliers_of_minicpm_are_those_of_the_config(key: str, tmp_path: Path) -> None:
    source = minicpm(tmp_path / "Tiny")
    config = json.loads((source / "config.json").read_text())
    values = []
    for factor in (1, 2):
        (source / "config.json").write_text(json.dumps(config | {key: factor * config[key]}))
        out = tmp_path / f"{factor}.gguf"
        apply(make_plan(source, AS_IS, out, to="gguf"))
        file = GgufFile.open(out)
        names = ("embedding_scale", "residual_scale", "logit_scale")
        values.append([file.get(f"minicpm.{name}") for name in names])
    plain, other = values
    assert plain == pytest.approx([12.0, 1.4 / 2**0.5, 128 / 64])
    assert sum(old != new for old, new in zip(plain, other, strict=True)) == 1

    without = {name: value for name, value in config.items() if name != key}
    for bad in (without, config | {key: "0"}, config | {"dim_model_base": 0}):
        (source / "config.json").write_text(json.dumps(bad))
        with pytest.raises(BadSource, match=f"{key}|dim_model_base"):
            make_plan(source, AS_IS, tmp_path / "none.gguf", to="gguf")


@pytest.mark.skipif(MLX_PYTHON is None, reason="ROPECONV_MLX_LM_PYTHON names no Python with mlx-lm")
@pytest.mark.parametrize("name", [name for name in MODELS if name != LARGE])
def test_llama_cpp_computes_what_mlx_lm_does(
    name: str, tree: Path, server: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StockConverter, "convert", server)
    assert MLX_PYTHON is not None
    with MlxLm(Path(MLX_PYTHON)) as mlx:
        row = row_of_mlx(name, tree, ["as-is", "yarn"], mlx)
    assert ("own" in row) is (name in CONVERTED)
    for cells in (row["stock"], row.get("own", row["stock"])):
        assert cells["as-is"]["status"] == "right"
        scaled = [cell for method, cell in cells.items() if method != "as-is" and "kl" in cell]
        for cell in scaled:
            assert cell["status"] == "right"
            assert cell["control"] > 0.1


def test_weights_get_the_names_of_checkpoints() -> None:
    weights = {"mlp.switch_mlp.up_proj.weight": torch.arange(4.0).reshape(2, 1, 2)}
    named = with_published_names(weights, MODELS["deepseek"]["names"])
    assert named["mlp.experts.1.up_proj.weight"].tolist() == [[2.0, 3.0]]
    assert len(named) == 2
