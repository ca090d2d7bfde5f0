"""Which elements of which tensors a fold multiplies, and by what: rows counted by hand, from names
and shapes alone.

Every case is layer 0 of a model with 4 heads of queries and 2 of keys, of 8 dimensions each.
"""

from typing import Any

import numpy as np
import pytest

from ropeconv.convert.fold import Fold, Scaling, fold, times_queries
from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.formats.safetensors import Tensor
from ropeconv.models.registry import by_model_type
from ropeconv.rope.forms import Plain
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDTH = 10
"""Columns of every matrix."""
Shapes = dict[str, tuple[int, ...]]


def spec(rotary_dim: int = 8, layers: tuple[Any, ...] = ("global",)) -> RopeSpec:
    return RopeSpec(8, rotary_dim, Plain(1e4), 64, 64, layers=layers)


def schedule(factor: float = 2.0, softmax_scale: float = 1.0) -> Schedule:
    return Schedule(np.ones(4), factor, 256, 64, softmax_scale=softmax_scale)


def checkpoint(shapes: Shapes, dtype: str = "F32", layer: int = 0) -> dict[str, Tensor]:
    """Tensors of a layer by the rest of their names."""
    named = {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}
    return {name: Tensor(name, dtype, shape, 0, 0) for name, shape in named.items()}


def made(family: str, tensors: dict[str, Tensor], **options: Any) -> Fold:
    config = {"model_type": family, **CONFIG, **options.pop("config", {})}
    given = options.pop("of", schedule()), options.pop("spec", spec())
    return fold(*given, by_model_type()[family], config, tensors, **options)


def folded(family: str, shapes: Shapes, **options: Any) -> dict[str, tuple[Any, float]]:
    """Spans and factor of every scaling by the end of its tensor's name."""
    scalings = made(family, checkpoint(shapes), **options).scalings
    assert len({scaling.tensor for scaling in scalings}) == len(scalings)
    return {
        scaling.tensor.partition("layers.0.")[2]: (scaling.spans, scaling.factor)
        for scaling in scalings
    }


Q, K = "self_attn.q_proj.weight", "self_attn.k_proj.weight"
Q_NORM, K_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"
Q_B, KV_A = "self_attn.q_b_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"
QKV, EACH = "self_attn.qkv_proj.weight", "self_attn.query_key_value"
PHI = "self_attn.k_layernorm"
LLAMA: Shapes = {Q: (32, WIDTH), K: (16, WIDTH)}
NORMED: Shapes = {**LLAMA, Q_NORM: (8,), K_NORM: (8,)}
DEEPSEEK: Shapes = {Q_B: (80, WIDTH), KV_A: (24, WIDTH)}
"""12 rows of content and 8 that rotate in a head of queries; keys share one such head behind 16
latent rows.
"""
GATED: Shapes = {Q_B: (96, WIDTH), KV_A: (24, WIDTH)}
"""The same with a gate of 4 rows behind each head of queries."""
LAST_8 = tuple((10 * (20 * head + 12), 10 * (20 * head + 20)) for head in range(4))
BEFORE_GATE = tuple((10 * (24 * head + 12), 10 * (24 * head + 20)) for head in range(4))
BUT_GATE = tuple((10 * 24 * head, 10 * (24 * head + 20)) for head in range(4))
SIX = spec(6)
EACH_KEY = (
    (8, 14),
    (32, 38),
    (56, 62),
    (80, 86),
)  # queries, keys and values of one head after the other


@pytest.mark.parametrize(
    ("family", "shapes", "options", "expected"),
    [
        # keys by the square, queries by the square, or both by the factor
        ("llama", LLAMA, {}, {K: (((0, 160),), 4.0)}),
        ("llama", LLAMA, {"fold_into": "q"}, {Q: (((0, 320),), 4.0)}),
        ("llama", LLAMA, {"fold_into": "qk"}, {Q: (((0, 320),), 2.0), K: (((0, 160),), 2.0)}),
        # only the dimensions that rotate
        ("llama", LLAMA, {"spec": SIX}, {K: (((0, 60), (80, 140)), 4.0)}),
        (
            "llama",
            {**LLAMA, "self_attn.k_proj.bias": (16,)},
            {"spec": SIX},
            {K: (((0, 60), (80, 140)), 4.0), "self_attn.k_proj.bias": (((0, 6), (8, 14)), 4.0)},
        ),
        # norms before the rotation stand in for the projections
        ("qwen3", NORMED, {}, {K_NORM: (((0, 8),), 4.0)}),
        (
            "qwen3",
            NORMED,
            {"fold_into": "qk", "spec": SIX},
            {Q_NORM: (((0, 6),), 2.0), K_NORM: (((0, 6),), 2.0)},
        ),
        (
            "olmo2",
            {**LLAMA, Q_NORM: (32,), K_NORM: (16,)},
            {"spec": SIX},
            {K_NORM: (((0, 6), (8, 14)), 4.0)},
        ),
        (
            "phi",
            {**LLAMA, f"{PHI}.weight": (8,), f"{PHI}.bias": (8,)},
            {"spec": spec(4)},
            {f"{PHI}.weight": (((0, 4),), 4.0), f"{PHI}.bias": (((0, 4),), 4.0)},
        ),
        (
            "stablelm",
            {**LLAMA, **{f"{PHI}.norms.{head}.weight": (8,) for head in (0, 1)}},
            {"spec": spec(2)},
            {f"{PHI}.norms.{head}.weight": (((0, 2),), 4.0) for head in (0, 1)},
        ),
        # fused rows: 4 heads of queries, 2 of keys and 2 of values
        ("phi3", {QKV: (64, WIDTH)}, {}, {QKV: (((320, 480),), 4.0)}),
        ("phi3", {QKV: (64, WIDTH)}, {"fold_into": "q"}, {QKV: (((0, 320),), 4.0)}),
        (
            "persimmon",
            {f"{EACH}.weight": (96, 1), f"{EACH}.bias": (96,)},
            {"spec": SIX},
            {f"{EACH}.weight": (EACH_KEY, 4.0), f"{EACH}.bias": (EACH_KEY, 4.0)},
        ),
        # latent attention rotates the last rows
        ("deepseek_v3", DEEPSEEK, {}, {KV_A: (((160, 240),), 4.0)}),
        ("deepseek_v3", DEEPSEEK, {"fold_into": "q"}, {Q_B: (LAST_8, 4.0)}),
        # the scale of all logits goes into all queries
        ("deepseek_v3", DEEPSEEK, {"of": schedule(1.0, 1.5)}, {Q_B: (((0, 800),), 1.5)}),
        # an output gate stays as it is
        ("axk2", GATED, {"config": {"v_head_dim": 4}, "fold_into": "q"}, {Q_B: (BEFORE_GATE, 4.0)}),
        ("axk2", GATED, {"config": {"v_head_dim": 4}}, {KV_A: (((160, 240),), 4.0)}),
        (
            "axk2",
            GATED,
            {"config": {"v_head_dim": 4}, "of": schedule(1.0, 1.5)},
            {Q_B: (BUT_GATE, 1.5)},
        ),
    ],
)
def test_what_is_multiplied(
    family: str, shapes: Shapes, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert folded(family, shapes, **options) == expected


@pytest.mark.parametrize(
    ("layers", "changed"),
    [(("global", "none"), [0]), (("local", "global"), [1]), (("global", "global"), [0, 1])],
)
def test_only_layers_that_are_extended_are_multiplied(
    layers: tuple[str, ...], changed: list[int]
) -> None:
    result = made("llama", checkpoint(LLAMA) | checkpoint(LLAMA, layer=1), spec=spec(layers=layers))
    assert [scaling.tensor for scaling in result.scalings] == [
        f"model.layers.{layer}.{K}" for layer in changed
    ]


@pytest.mark.parametrize(("family", "plus_one"), [("qwen3", False), ("gemma3_text", True)])
def test_norms_cost_nothing_and_may_be_stored_less_one(family: str, plus_one: bool) -> None:
    result = made(family, checkpoint(NORMED))
    assert [scaling.plus_one for scaling in result.scalings] == [plus_one]
    assert result.expected_kl == 0.0


@pytest.mark.parametrize(
    ("dtype", "factor", "expected"),
    [
        ("F32", 1.1, 0.0),
        ("F64", 1.1, 0.0),
        ("F16", 1.1, 2e-6),
        ("BF16", 1.1, 1e-4),
        ("BF16", 2.0, 0.0),
        ("BF16", 2.0**0.5, 0.0),
        ("F16", 0.5, 0.0),
        ("BF16", 2.0 * (1 + 1e-6), 1e-4),
    ],
)
def test_what_rounding_costs(dtype: str, factor: float, expected: float) -> None:
    assert made("llama", checkpoint(LLAMA, dtype), of=schedule(factor)).expected_kl == expected


@pytest.mark.parametrize(
    ("family", "tensors", "options", "words"),
    [
        (
            "llama",
            checkpoint(LLAMA, "I8"),
            {},
            r"k_proj\.weight in I8.*only floats of 16 bits and more can be scaled",
        ),
        (
            "llama",
            checkpoint({"self_attn.k_proj.qweight": (16, WIDTH)}, "I32"),
            {},
            r"k_proj\.qweight in I32.*it is quantised to integers",
        ),
        ("llama", checkpoint(LLAMA), {"spec": spec(layers=("none",))}, "no layer is extended"),
        (
            "llama",
            {},
            {},
            r"the checkpoint has no model\.layers\.0\.self_attn\.k_proj\.weight; download",
        ),
        (
            "llama",
            checkpoint({K: (16, WIDTH)}),
            {"fold_into": "q"},
            r"no model\.layers\.0\.self_attn\.q_proj\.weight; download",
        ),
        ("baichuan", checkpoint(LLAMA), {}, "its projections are not known; use --encoding native"),
        (
            "olmo",
            checkpoint(LLAMA),
            {"config": {"clip_qkv": 8.0}},
            "clip_qkv limits the outputs of its projections; use --encoding native",
        ),
        (
            "muse_glimmer",
            checkpoint(LLAMA),
            {},
            "a norm without weights stands between.*; use --encoding native",
        ),
        ("axk2", checkpoint(GATED), {"fold_into": "q"}, "config.json has no v_head_dim; add it"),
    ],
)
def test_weights_that_hold_no_factor(
    family: str, tensors: dict[str, Tensor], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((UnsupportedBake, BadSource), match=words):
        made(family, tensors, **options)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_all_queries_times_a_power_of_two(dtype: str) -> None:
    family = by_model_type()["llama"]
    tensors = checkpoint(LLAMA, dtype) | checkpoint(LLAMA, dtype, layer=1)
    scalings = times_queries(2.0**-13, spec(layers=("global", "none")), family, tensors)
    assert scalings == tuple(
        Scaling(f"model.layers.{layer}.{Q}", ((0, 320),), 2.0**-13) for layer in (0, 1)
    )
    with pytest.raises(UnsupportedBake, match="0.00012207 .*bits"):
        times_queries(2.0**-13, spec(), family, checkpoint(LLAMA, "F16"))


def indexer(*sides: str) -> Shapes:
    return {
        f"self_attn.indexer.{side}_norm.{kind}": (12,)
        for side in sides
        for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("into", ["q", "k", "qk"])
@pytest.mark.parametrize(("family", "span"), [("deepseek_v32", (0, 8)), ("hy_v4", (4, 12))])
def test_the_norm_of_the_keys_of_an_indexer_takes_the_whole_square(
    family: str, span: Any, into: str
) -> None:
    scalings = folded(family, DEEPSEEK | indexer("k"), fold_into=into)
    indexer_scalings = {name: scaling for name, scaling in scalings.items() if "indexer" in name}
    assert indexer_scalings == dict.fromkeys(indexer("k"), ((span,), 4.0))
