"""What files that become another architecture hold, and log-n in mistral3, from files without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...support.baking import MIXED, recipe_of
from .edits import FREQS, QUERIES, keys, planned

FULL, CLAMPED = recipe_of("mixed", 4.0, log_n="full"), recipe_of("mixed", 4.0, log_n="clamped")


def test_rows_move_where_pairs_lie_otherwise(tmp_path: Path) -> None:
    more = {
        **QUERIES,
        "blk.1.attn_k.bias": np.zeros(64, np.float32),
        "blk.1.attn_v.weight": np.zeros((64, 128), np.float16),
    }
    moved = {*QUERIES, "blk.1.attn_k.bias"}
    for arch, to, changed in (("qwen2", "llama", moved), ("qwen2", "mistral3", moved), ("llama", "mistral3", set()),
                              ("xverse", "llama", set()), ("internlm2", "llama", set())):  # fmt: skip
        plan = planned(tmp_path, arch, MIXED, more=more, carrier=to)
        assert (plan.result.arch, set(plan.result.edit.changes)) == (to, changed)
        assert keys(plan)["rope.dimension_count"] == 64
        assert {one.interleaved for one in plan.result.edit.changes.values()} <= {64}


def test_full_log_n_with_a_scale_of_its_own_for_each_layer(tmp_path: Path) -> None:
    bias = {"blk.1.attn_q.bias": np.arange(128, dtype=np.float32)}
    plan = planned(tmp_path, "llama", FULL, more={**QUERIES, **bias}, carrier="mistral3")
    steps = plan.result.log_n_approximation
    assert steps is not None
    assert keys(plan) == {
        "context_length": 256, "rope.dimension_count": 64, "rope.scaling.type": "none",
        "rope.scaling.original_context_length": 1, "attention.temperature_scale": float(np.float32(steps.beta)),
    }  # fmt: skip
    assert steps.gain == 2.0**-20
    scales = [item for item in plan.result.edit.added if item.name.endswith(".scale")]
    assert [item.name for item in scales] == [f"blk.{layer}.attn_q.scale" for layer in (0, 1)]
    assert [np.frombuffer(item.data, "<f4").tolist() for item in scales] == [[steps.gain]] * 2
    change = plan.result.edit.changes["blk.1.attn_q.bias"]
    scaled = np.frombuffer(change.apply(bias["blk.1.attn_q.bias"].tobytes()), "<f4")
    np.testing.assert_array_equal(scaled, bias["blk.1.attn_q.bias"] * np.float32(steps.gain))
    carried, note = plan.result.notes
    assert carried.startswith("the file becomes the GGUF architecture mistral3")
    assert note == (
        f"log-n is within {plan.result.deviation:.0e} of the formula; llama.cpp from 2026 on reads the attn_q.scale "
        "that this needs"
    )
    assert (plan.result.encoding, plan.result.verdicts[0].status) == ("carrier", "exact")


def test_a_bias_that_moves_is_scaled_where_it_goes(tmp_path: Path) -> None:
    bias = np.arange(128, dtype=np.float32)
    plan = planned(tmp_path, "qwen2", FULL, more={**QUERIES, "blk.0.attn_q.bias": bias}, encoding="carrier")
    found = np.frombuffer(plan.result.edit.changes["blk.0.attn_q.bias"].whole(bias.tobytes()), "<f4")
    head = bias[:64].reshape(2, 32).T.flatten()  # pairs (i, i + 32) become (2i, 2i + 1)
    np.testing.assert_array_equal(found[:64], head * np.float32(2.0**-20))


def test_log_n_in_a_file_that_is_mistral_3_already(tmp_path: Path) -> None:
    plan = planned(tmp_path, "mistral3", CLAMPED, allow_approximate=True)
    (note,) = plan.result.notes
    assert note == "log-n comes in steps of 64 tokens, up to 16.2% above the formula over 256 tokens"
    assert keys(plan)["rope.scaling.original_context_length"] == 64
    assert (plan.result.encoding, plan.result.arch) == ("tensor", "mistral3")
    assert plan.result.verdicts[0].status == "approximate"
    assert [item.name for item in plan.result.edit.added] == [FREQS]
