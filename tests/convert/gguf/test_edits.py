"""What keys and rope tensors say, key by key, from files without a model."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.rope.recipe import Recipe

from ...support.baking import LINEAR, MIXED, YARN, recipe_of
from .edits import FREQS, LONG, QUERIES, SHORT, STRETCHED, before, keys, planned, vectors


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (recipe_of("theta", 1e6, context=256), {**STRETCHED, "rope.freq_base": 1e6}),
        (recipe_of("theta", 1e6), {"context_length": 64, "rope.freq_base": 1e6}),
        (
            LINEAR,
            {
                **STRETCHED,
                "rope.freq_base": 1e4,
                "rope.scaling.type": "linear",
                "rope.scaling.factor": 4.0,
            },
        ),
        (
            YARN,
            {
                **STRETCHED,
                "rope.freq_base": 1e4,
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
            },
        ),
        (
            recipe_of("yarn", 4.0, attention_factor=1.5),
            {
                **STRETCHED,
                "rope.freq_base": 1e4,
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.attn_factor": pytest.approx(1.5 / (1 + 0.1 * math.log(4))),
            },
        ),
    ],
)
def test_keys(tmp_path: Path, of: Recipe, expected: dict[str, Any]) -> None:
    assert keys(planned(tmp_path, "llama", of, encoding="keys")) == expected


def test_betas_where_they_are_read(tmp_path: Path) -> None:
    for fast, slow in ((16.0, 1.0), (32.0, 2.0)):
        values = keys(
            planned(tmp_path, "mistral3", recipe_of("yarn", 4.0, fast, slow), encoding="keys")
        )
        assert (values["rope.scaling.yarn_beta_fast"], values["rope.scaling.yarn_beta_slow"]) == (
            fast,
            slow,
        )
    assert not [
        key for key in keys(planned(tmp_path, "mistral3", YARN, encoding="keys")) if "beta" in key
    ]


def test_an_earlier_scaling_leaves_no_key(tmp_path: Path) -> None:
    old = {
        "rope.scale_linear": 2.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 2.0,
        "rope.scaling.attn_factor": 1.5,
        "rope.scaling.original_context_length": 32,
        "rope.scaling.yarn_attn_factor": 1.5,
        "rope.scaling.yarn_beta_fast": 16.0,
        "rope.scaling.yarn_beta_slow": 2.0,
        "rope.scaling.alpha": 2.0,
        "rope.scaling.yarn_ext_factor": 1.0,
    }
    plan = planned(
        tmp_path,
        "llama",
        recipe_of("theta", 1e6, context=64),
        old,
        {FREQS: np.full(32, 2, np.float32)},
        replace=True,
    )
    after = before(plan).after(plan.result.edit)
    left = {key for key in after.header.values if "rope.scal" in key}
    assert left == {
        "llama.rope.scaling.original_context_length"
    }  # 32 is the trained one, and 64 is declared
    assert vectors(plan) == {FREQS: [1.0] * 32}


def test_query_scaling_keeps_the_length_that_it_reads(tmp_path: Path) -> None:
    scaled = {"attention.temperature_scale": 0.1, "rope.scaling.original_context_length": 32}
    assert keys(planned(tmp_path, "mistral3", LINEAR, scaled)) == {
        "context_length": 256,
        "rope.freq_base": 1e4,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }
    theta = recipe_of("theta", 1e6, context=256)
    assert keys(planned(tmp_path, "mistral3", theta, scaled)) == {
        "context_length": 256,
        "rope.freq_base": 1e6,
    }
    unstated = keys(planned(tmp_path, "mistral3", theta, {"attention.temperature_scale": 0.1}))
    assert (
        unstated["rope.scaling.original_context_length"] == 64
    )  # which stays the unit of the scale
    free = keys(
        planned(tmp_path, "mistral3", theta, {**scaled, "attention.temperature_scale": 0.0})
    )
    assert free["rope.scaling.original_context_length"] == 32


@pytest.mark.parametrize(
    ("arch", "window_base", "follows"),
    [
        ("gemma2", 1e4, True),
        ("gemma2", None, False),
        ("gemma2", 5e5, False),
        ("exaone4", 5e5, True),
        ("muse-glimmer", 1e4, True),
        ("gemma3", 1e4, False),
        ("llama", 1e4, False),
    ],
)
def test_a_base_of_window_layers_follows_where_they_rotate_alike(
    tmp_path: Path, arch: str, window_base: float | None, follows: bool
) -> None:
    """Layers with a window that have a base of their own keep it; in exaone4 they have none."""
    # with the layers of a whole pattern, one of which sees the whole context
    extra = {"block_count": 6, "attention.sliding_window": 32}
    if window_base is not None:
        extra["rope.freq_base_swa"] = window_base
    values = keys(planned(tmp_path, arch, recipe_of("theta", 1e6, context=256), extra))
    assert values.get("rope.freq_base_swa") == (1e6 if follows else None)


def test_divisors(tmp_path: Path) -> None:
    single = planned(tmp_path, "llama", MIXED)
    assert single.result.encoding == "tensor"
    assert keys(single) == {**STRETCHED, "rope.scaling.type": "none"}
    base = 10000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(vectors(single)[FREQS], base / single.schedule.inv_freq, rtol=1e-6)
    pair = planned(tmp_path, "llama", recipe_of("mixed", 4.0, keep_short=True))
    assert keys(pair) == {**STRETCHED, "rope.scaling.type": "longrope"}
    divisors = vectors(pair)
    np.testing.assert_allclose(divisors[LONG], vectors(single)[FREQS])
    assert divisors[SHORT] == [1.0] * 32
    assert divisors.keys() == {LONG, SHORT}


def test_divisors_that_are_there_are_overwritten(tmp_path: Path) -> None:
    """A pair that is loaded under longrope alone is written as one, though one list would do."""
    old = {name: np.ones(32, np.float32) for name in (LONG, SHORT)}
    scaled = planned(tmp_path, "phi3", MIXED, more=old)
    assert (scaled.result.edit.added, set(scaled.result.edit.changes)) == ({}, {LONG, SHORT})
    assert keys(scaled)["rope.scaling.type"] == "none"
    assert vectors(scaled)[LONG] == vectors(scaled)[SHORT] != [1.0] * 32
    longrope = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64}
    loaded = planned(tmp_path, "llama", MIXED, longrope, old)
    assert keys(loaded)["rope.scaling.type"] == "longrope"
    fresh = planned(tmp_path, "phi3", MIXED)
    assert {name: len(data) for name, data in fresh.result.edit.added.items()} == {
        LONG: 4 * 32,
        SHORT: 4 * 32,
    }


def test_norms_take_back_a_factor_from_window_layers(tmp_path: Path) -> None:
    """gemma3: every sixth layer is extended, and the others read the same key."""
    norms = {f"blk.{layer}.attn_q_norm.weight": np.full(64, 3, np.float32) for layer in range(8)}
    extra = {"attention.sliding_window": 32, "block_count": 8}
    loud = recipe_of("yarn", 4.0, attention_factor=1.5)
    plan = planned(tmp_path, "gemma3", loud, extra, norms)
    given = 1.5 / (1 + 0.1 * math.log(4))
    edit = plan.result.edit
    assert set(edit.changes) == {
        f"blk.{layer}.attn_q_norm.weight" for layer in (0, 1, 2, 3, 4, 6, 7)
    }
    scaled = np.frombuffer(
        edit.changes["blk.0.attn_q_norm.weight"].apply(np.full(64, 3, "<f4").tobytes()), "<f4"
    )
    np.testing.assert_allclose(scaled, 3 / given**2, rtol=1e-6)
    assert before(plan).after(edit).get("ropeconv.window_norm_scale") == pytest.approx(1 / given)
    again = planned(
        tmp_path, "gemma3", loud, {**extra, "ropeconv.window_norm_scale": 2.0}, norms
    ).result.edit
    twice = np.frombuffer(
        again.changes["blk.0.attn_q_norm.weight"].apply(np.full(64, 3, "<f4").tobytes()), "<f4"
    )
    np.testing.assert_allclose(twice, 3 / (2 * given) ** 2, rtol=1e-6)
    quiet = planned(tmp_path, "gemma3", YARN, extra, norms)
    assert not quiet.result.edit.changes


# What files that become another architecture hold, and log-n in mistral3, from files without a
# model


FULL = recipe_of("mixed", 4.0, log_n="full")
CLAMPED = recipe_of("mixed", 4.0, log_n="clamped")


def test_rows_move_where_pairs_lie_otherwise(tmp_path: Path) -> None:
    more = {
        **QUERIES,
        "blk.1.attn_k.bias": np.zeros(64, np.float32),
        "blk.1.attn_v.weight": np.zeros((64, 128), np.float16),
    }
    moved = {*QUERIES, "blk.1.attn_k.bias"}
    for arch, to, changed in (
        ("qwen2", "llama", moved),
        ("qwen2", "mistral3", moved),
        ("llama", "mistral3", set()),
        ("xverse", "llama", set()),
        ("internlm2", "llama", set()),
    ):
        plan = planned(tmp_path, arch, MIXED, more=more, carrier=to)
        assert (plan.result.arch, set(plan.result.edit.changes)) == (to, changed)
        assert keys(plan)["rope.dimension_count"] == 64
        assert {change.interleaved for change in plan.result.edit.changes.values()} <= {64}


def test_full_log_n_with_a_scale_of_its_own_for_each_layer(tmp_path: Path) -> None:
    bias = {"blk.1.attn_q.bias": np.arange(128, dtype=np.float32)}
    plan = planned(tmp_path, "llama", FULL, more={**QUERIES, **bias}, carrier="mistral3")
    steps = plan.result.log_n_approximation
    assert steps is not None
    assert keys(plan) == {
        "context_length": 256,
        "rope.dimension_count": 64,
        "rope.scaling.type": "none",
        "rope.scaling.original_context_length": 1,
        "attention.temperature_scale": float(np.float32(steps.beta)),
    }
    assert steps.gain == 2.0**-20
    scales = {
        name: data for name, data in plan.result.edit.added.items() if name.endswith(".scale")
    }
    assert list(scales) == [f"blk.{layer}.attn_q.scale" for layer in (0, 1)]
    assert [np.frombuffer(data, "<f4").tolist() for data in scales.values()] == [[steps.gain]] * 2
    change = plan.result.edit.changes["blk.1.attn_q.bias"]
    scaled = np.frombuffer(change.apply(bias["blk.1.attn_q.bias"].tobytes()), "<f4")
    np.testing.assert_array_equal(scaled, bias["blk.1.attn_q.bias"] * np.float32(steps.gain))
    carried, note = plan.result.notes
    assert "mistral3" in carried
    assert (
        note
        == f"log-n is within {plan.result.deviation:.0e} of the formula; llama.cpp from 2026 on"
        " reads the attn_q.scale that this needs"
    )
    assert (plan.result.encoding, plan.result.verdicts[0].status) == ("carrier", "exact")


def test_a_bias_that_moves_is_scaled_where_it_goes(tmp_path: Path) -> None:
    bias = np.arange(128, dtype=np.float32)
    plan = planned(
        tmp_path, "qwen2", FULL, more={**QUERIES, "blk.0.attn_q.bias": bias}, encoding="carrier"
    )
    actual = np.frombuffer(
        plan.result.edit.changes["blk.0.attn_q.bias"].whole(bias.tobytes()), "<f4"
    )
    head = bias[:64].reshape(2, 32).T.flatten()  # pairs (i, i + 32) become (2i, 2i + 1)
    np.testing.assert_array_equal(actual[:64], head * np.float32(2.0**-20))


def test_log_n_in_a_file_that_is_mistral_3_already(tmp_path: Path) -> None:
    plan = planned(tmp_path, "mistral3", CLAMPED, allow_approximate=True)
    (note,) = plan.result.notes
    assert (
        note == "log-n comes in steps of 64 tokens, up to 16.2% above the formula over 256 tokens"
    )
    assert keys(plan)["rope.scaling.original_context_length"] == 64
    assert (plan.result.encoding, plan.result.arch) == ("tensor", "mistral3")
    assert plan.result.verdicts[0].status == "approximate"
    assert list(plan.result.edit.added) == [FREQS]
