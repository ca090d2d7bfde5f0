"""Which elements of which tensors a fold multiplies, and by what: rows counted by hand, from names and shapes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropeconv.encode.fold.placement import Scaling, fold, times_queries
from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.families import by_model_type
from ropeconv.formats.safetensors import Tensor
from ropeconv.rope.forms import Plain
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDTH = 10
"""Columns of every matrix; heads have 8 dimensions."""


def spec(rotary_dim: int = 8, layers: tuple[Any, ...] = ("global",), head_dim: int = 8) -> RopeSpec:
    return RopeSpec(head_dim, rotary_dim, Plain(1e4), 64, 64, layers=layers)


def schedule(factor: float = 2.0, softmax_scale: float = 1.0) -> Schedule:
    return Schedule(np.ones(4), factor, 256, 64, softmax_scale=softmax_scale)


def checkpoint(dtype: str = "F32", **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Tensors of layer 0 by the rest of their names, with dots as two underscores."""
    named = {f"model.layers.0.{name.replace('__', '.')}": shape for name, shape in shapes.items()}
    return {name: Tensor(name, dtype, shape, 0, 0) for name, shape in named.items()}


def folded(family: str, tensors: dict[str, Tensor], **options: Any) -> dict[str, tuple[Any, float]]:
    """Spans and factor of every scaling by the end of its tensor's name."""
    config = {"model_type": family, **CONFIG, **options.pop("config", {})}
    made = options.pop("made", schedule())
    found = fold(made, options.pop("of", spec()), by_model_type()[family], config, tensors, **options)
    names = [scaling.tensor for scaling in found.scalings]
    assert len(set(names)) == len(names)
    return {one.tensor.partition("layers.0.")[2]: (one.spans, one.factor) for one in found.scalings}


Q, K = "self_attn.q_proj.weight", "self_attn.k_proj.weight"
LLAMA = {"self_attn__q_proj__weight": (32, WIDTH), "self_attn__k_proj__weight": (16, WIDTH)}


def test_keys_by_the_square_queries_by_the_square_or_both_by_the_factor() -> None:
    tensors = checkpoint(**LLAMA)
    assert folded("llama", tensors) == {K: (((0, 160),), 4.0)}
    assert folded("llama", tensors, fold_into="q") == {Q: (((0, 320),), 4.0)}
    assert folded("llama", tensors, fold_into="qk") == {Q: (((0, 320),), 2.0), K: (((0, 160),), 2.0)}
    assert folded("llama", tensors, made=schedule(1.0)) == folded("llama", tensors, made=schedule(1 + 1e-12)) == {}
    assert folded("llama", tensors, made=schedule(1 - 1e-6)) == {K: (((0, 160),), (1 - 1e-6) ** 2)}


def test_only_the_dimensions_that_rotate_are_multiplied() -> None:
    partial = spec(rotary_dim=6)
    assert folded("llama", checkpoint(**LLAMA), of=partial) == {K: (((0, 60), (80, 140)), 4.0)}
    stacked = checkpoint(self_attn__k_proj__weight=(2, 8, WIDTH))  # rows by heads
    assert folded("llama", stacked, of=partial) == {K: (((0, 60), (80, 140)), 4.0)}
    bias = checkpoint(**LLAMA, self_attn__k_proj__bias=(16,))
    assert folded("llama", bias, of=partial)["self_attn.k_proj.bias"] == (((0, 6), (8, 14)), 4.0)
    assert folded("llama", bias)["self_attn.k_proj.bias"] == (((0, 16),), 4.0)


def test_only_layers_that_are_extended_are_multiplied() -> None:
    tensors = checkpoint(**LLAMA)
    second = {name.replace("layers.0", "layers.1"): replace(one, name=name) for name, one in tensors.items()}
    for layers, names in (
        (("global", "none"), ["model.layers.0."]), (("local", "global"), ["model.layers.1."]),
        (("global", "global"), ["model.layers.0.", "model.layers.1."]),
    ):  # fmt: skip
        family = by_model_type()["llama"]
        found = fold(schedule(), spec(layers=layers), family, {**CONFIG, "model_type": "llama"}, {**tensors, **second})
        assert [one.tensor for one in found.scalings] == [f"{prefix}{K}" for prefix in names]


def test_norms_before_the_rotation_stand_in_for_the_projections() -> None:
    norms = {"self_attn__q_norm__weight": (8,), "self_attn__k_norm__weight": (8,)}
    tensors = checkpoint(**LLAMA, **norms)
    assert folded("qwen3", tensors) == {"self_attn.k_norm.weight": (((0, 8),), 4.0)}
    assert folded("qwen3", tensors, fold_into="qk", of=spec(6)) == {
        "self_attn.q_norm.weight": (((0, 6),), 2.0), "self_attn.k_norm.weight": (((0, 6),), 2.0),
    }  # fmt: skip
    wide = checkpoint(**LLAMA, self_attn__q_norm__weight=(32,), self_attn__k_norm__weight=(16,))
    assert folded("olmo2", wide, of=spec(6)) == {"self_attn.k_norm.weight": (((0, 6), (8, 14)), 4.0)}
    plain = fold(schedule(), spec(), by_model_type()["qwen3"], {**CONFIG, "model_type": "qwen3"}, tensors)
    plus = fold(schedule(), spec(), by_model_type()["gemma3_text"], {**CONFIG, "model_type": "gemma3_text"}, tensors)
    assert [one.plus_one for one in (*plain.scalings, *plus.scalings)] == [False, True]
    assert (plain.expected_kl, plus.expected_kl) == (0.0, 0.0)


def test_norms_with_a_bias_or_one_for_each_head() -> None:
    layer = checkpoint(**LLAMA, self_attn__k_layernorm__weight=(8,), self_attn__k_layernorm__bias=(8,))
    assert folded("phi", layer, of=spec(4)) == {
        "self_attn.k_layernorm.weight": (((0, 4),), 4.0), "self_attn.k_layernorm.bias": (((0, 4),), 4.0),
    }  # fmt: skip
    assert folded("phi", checkpoint(**LLAMA), of=spec(4)) == {K: (((0, 40), (80, 120)), 4.0)}
    heads = {f"self_attn__k_layernorm__norms__{head}__weight": (8,) for head in (0, 1)}
    assert folded("stablelm", checkpoint(**LLAMA, **heads), of=spec(2)) == {
        f"self_attn.k_layernorm.norms.{head}.weight": (((0, 2),), 4.0) for head in (0, 1)
    }


def test_rows_of_fused_projections() -> None:
    """4 heads of queries, 2 of keys and 2 of values, of 8 rows each, of which 6 rotate."""
    phi3 = checkpoint(self_attn__qkv_proj__weight=(64, WIDTH))
    name = "self_attn.qkv_proj.weight"
    assert folded("phi3", phi3) == {name: (((320, 480),), 4.0)}
    assert folded("phi3", phi3, fold_into="q") == {name: (((0, 320),), 4.0)}
    assert folded("phi3", phi3, of=spec(6)) == {name: (((320, 380), (400, 460)), 4.0)}
    each = checkpoint(self_attn__query_key_value__weight=(96, 1), self_attn__query_key_value__bias=(96,))
    spans = ((8, 14), (32, 38), (56, 62), (80, 86))  # queries, keys and values of one head after the other
    assert folded("persimmon", each, of=spec(6)) == {
        "self_attn.query_key_value.weight": (spans, 4.0), "self_attn.query_key_value.bias": (spans, 4.0),
    }  # fmt: skip


GATED = {"self_attn__q_b_proj__weight": (96, WIDTH), "self_attn__kv_a_proj_with_mqa__weight": (24, WIDTH)}
DEEPSEEK = {"self_attn__q_b_proj__weight": (80, WIDTH), "self_attn__kv_a_proj_with_mqa__weight": (24, WIDTH)}


def test_latent_attention_rotates_the_last_rows() -> None:
    """4 heads of queries with 12 rows of content and 8 that rotate; keys share one such head behind 16 latent rows."""
    tensors = checkpoint(**DEEPSEEK)
    assert folded("deepseek_v3", tensors) == {"self_attn.kv_a_proj_with_mqa.weight": (((160, 240),), 4.0)}
    queries = tuple((10 * (20 * head + 12), 10 * (20 * head + 20)) for head in range(4))
    assert folded("deepseek_v3", tensors, fold_into="q") == {"self_attn.q_b_proj.weight": (queries, 4.0)}
    direct = checkpoint(self_attn__q_proj__weight=(80, WIDTH), **dict(list(DEEPSEEK.items())[1:]))
    assert folded("deepseek_v3", direct, fold_into="q") == {Q: (queries, 4.0)}


def test_the_scale_of_all_logits_goes_into_all_queries() -> None:
    scaled = schedule(1.0, softmax_scale=1.5)
    assert folded("deepseek_v3", checkpoint(**DEEPSEEK), made=scaled) == {
        "self_attn.q_b_proj.weight": (((0, 800),), 1.5)
    }
    assert folded("deepseek_v3", checkpoint(**DEEPSEEK), made=schedule(1.0, 1 + 1e-12)) == {}
    both = fold(
        schedule(2.0, 1.5), spec(), by_model_type()["deepseek_v3"], {**CONFIG, "model_type": "deepseek_v3"},
        checkpoint(**DEEPSEEK), "q",
    )  # fmt: skip
    assert [one.factor for one in both.scalings] == [4.0, 1.5]
    assert both.tensors == ("model.layers.0.self_attn.q_b_proj.weight",)


@pytest.mark.parametrize(
    ("dtype", "factor", "expected"),
    [
        ("F32", 1.1, 0.0), ("F64", 1.1, 0.0), ("F16", 1.1, 2e-6), ("BF16", 1.1, 1e-4), ("BF16", 2.0, 0.0),
        ("BF16", 2.0**0.5, 0.0), ("F16", 0.5, 0.0), ("BF16", 2.0 * (1 + 1e-6), 1e-4),
    ],
)  # fmt: skip
def test_what_rounding_costs(dtype: str, factor: float, expected: float) -> None:
    family, config = by_model_type()["llama"], {**CONFIG, "model_type": "llama"}
    assert fold(schedule(factor), spec(), family, config, checkpoint(dtype, **LLAMA)).expected_kl == expected


@pytest.mark.parametrize(
    ("family", "tensors", "options", "words"),
    [
        ("llama", checkpoint("I8", **LLAMA), {},
         r"k_proj\.weight in I8.*only floats of 16 bits and more can be scaled"),
        ("llama", checkpoint("I32", self_attn__k_proj__qweight=(16, WIDTH)), {},
         r"k_proj\.qweight in I32.*it is quantised to integers"),
        ("llama", checkpoint(**LLAMA), {"of": spec(layers=("none",))}, "no layer is extended"),
        ("llama", {}, {}, r"the checkpoint has no model\.layers\.0\.self_attn\.k_proj\.weight; download"),
        ("llama", checkpoint(self_attn__k_proj__weight=(16, WIDTH)), {"fold_into": "q"},
         r"no model\.layers\.0\.self_attn\.q_proj\.weight; download"),
        ("baichuan", checkpoint(**LLAMA), {}, "its projections are not known; use native"),
        ("olmo", checkpoint(**LLAMA), {"config": {"clip_qkv": 8.0}},
         "clip_qkv limits what its projections give; use --encoding native"),
        ("muse_glimmer", checkpoint(**LLAMA), {}, "a norm without weights stands between.*; use --encoding native"),
        ("axk2", checkpoint(**GATED), {"fold_into": "q"}, "config.json has no v_head_dim; add it"),
    ],
)  # fmt: skip
def test_weights_that_hold_no_factor(
    family: str, tensors: dict[str, Tensor], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((UnsupportedBake, BadSource), match=words):
        folded(family, tensors, **options)


def test_what_nothing_is_folded_for_needs_no_weights() -> None:
    assert folded("llama", checkpoint(**LLAMA), of=spec(layers=("none",)), made=schedule(1.0)) == {}
    assert folded("olmo", checkpoint(**LLAMA), config={"clip_qkv": None}) == {K: (((0, 160),), 4.0)}


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_all_queries_times_a_power_of_two(dtype: str) -> None:
    family, tensors = by_model_type()["llama"], checkpoint(dtype, **LLAMA)
    second = {name.replace("layers.0", "layers.1"): one for name, one in tensors.items()}
    found = times_queries(2.0**-13, spec(layers=("global", "none")), family, {**tensors, **second})
    assert found == tuple(Scaling(f"model.layers.{layer}.{Q}", ((0, 320),), 2.0**-13) for layer in (0, 1))
    with pytest.raises(UnsupportedBake, match="a factor of 0.00012207 in the queries.*bits would be lost"):
        times_queries(2.0**-13, spec(), family, checkpoint("F16", **LLAMA))


def test_a_bias_beside_an_rms_norm_is_not_read_and_stays() -> None:
    norms = {f"self_attn__{side}_norm__{kind}": (8,) for side in "qk" for kind in ("weight", "bias")}
    assert folded("qwen3", checkpoint(**LLAMA, **norms)).keys() == {"self_attn.k_norm.weight"}


def test_rows_of_an_output_gate_stay_as_they_are() -> None:
    """4 heads with 12 rows of content, 8 that rotate and a gate of 4, which the scale of all logits passes by too."""
    tensors, config = checkpoint(**GATED), {"v_head_dim": 4}
    name = "self_attn.q_b_proj.weight"
    rotated = tuple((10 * (24 * head + 12), 10 * (24 * head + 20)) for head in range(4))
    assert folded("axk2", tensors, config=config, fold_into="q") == {name: (rotated, 4.0)}
    assert folded("axk2", tensors, config=config) == {"self_attn.kv_a_proj_with_mqa.weight": (((160, 240),), 4.0)}
    scaled = schedule(1.0, softmax_scale=1.5)
    queries = tuple((10 * 24 * head, 10 * (24 * head + 20)) for head in range(4))
    assert folded("axk2", tensors, config=config, made=scaled) == {name: (queries, 1.5)}


def test_norms_of_an_indexer_take_the_whole_square_or_that_of_their_side() -> None:
    def indexer(*sides: str) -> dict[str, tuple[int, ...]]:
        return {f"self_attn__indexer__{side}_norm__{kind}": (12,) for side in sides for kind in ("weight", "bias")}

    keys, prefix = ("self_attn.kv_a_proj_with_mqa.weight", (((160, 240),), 4.0)), "self_attn.indexer.k_norm"
    for into in ("q", "k", "qk"):
        found = folded("deepseek_v32", checkpoint(**DEEPSEEK, **indexer("k")), fold_into=into)
        assert {name: one for name, one in found.items() if "indexer" in name} == {
            f"{prefix}.weight": (((0, 8),), 4.0), f"{prefix}.bias": (((0, 8),), 4.0),
        }  # fmt: skip
    last = folded("hy_v4", checkpoint(**DEEPSEEK, **indexer("k")))
    assert last[f"{prefix}.weight"] == (((4, 12),), 4.0)
    assert folded("deepseek_v32", checkpoint(**DEEPSEEK)) == dict([keys])
    norms = {f"self_attn__{side}_norm__weight": (8,) for side in "qk"}
    sided = checkpoint(**LLAMA, **norms, **indexer("q", "k"))
    for into, factors in (("q", {"q": 4.0}), ("k", {"k": 4.0}), ("qk", {"q": 2.0, "k": 2.0})):
        found = folded("minimax_m3_vl", sided, fold_into=into)
        expected = {f"self_attn.{side}_norm.weight": (((0, 8),), factor) for side, factor in factors.items()}
        for side, factor in factors.items():
            expected |= {f"self_attn.indexer.{side}_norm.{kind}": (((0, 8),), factor) for kind in ("weight", "bias")}
        assert found == expected


@pytest.mark.parametrize(
    ("family", "name", "rows", "into", "spans"),
    [
        # behind a gate for each query head
        ("hrm_text", "model.L_module.layers.0.attn.gqkv_proj.weight", 96, "k", ((64, 70), (72, 78))),
        ("hrm_text", "model.L_module.layers.0.attn.gqkv_proj.weight", 96, "q",
         ((32, 38), (40, 46), (48, 54), (56, 62))),
        # in groups of two heads of queries, and one of keys and of values
        ("falcon", "transformer.h.0.self_attention.query_key_value.weight", 64, "k", ((16, 22), (48, 54))),
        ("falcon", "transformer.h.0.self_attention.query_key_value.weight", 64, "q",
         ((0, 6), (8, 14), (32, 38), (40, 46))),
    ],
)  # fmt: skip
def test_further_orders_of_fused_rows(family: str, name: str, rows: int, into: Any, spans: Any) -> None:
    """4 heads of queries and 2 of keys and values with 8 rows each, of which 6 rotate."""
    tensors, config = {name: Tensor(name, "F32", (rows, 1), 0, 0)}, {"model_type": family, **CONFIG}
    found = fold(schedule(), spec(6), by_model_type()[family], config, tensors, into)
    assert [one.spans for one in found.scalings] == [spans]
