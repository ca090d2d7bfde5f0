"""What encodings write into a config for each form of a schedule, key by key."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropeconv.encode import EncodeRequest, Target, all_encodings
from ropeconv.encode.checkpoint.config_edit import put
from ropeconv.encode.result import with_deviation
from ropeconv.errors import UnsupportedBake
from ropeconv.families import by_model_type
from ropeconv.rope.forms import Form, Interpolated, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.schedule import Schedule
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.verdict import Verdict

CONFIG = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
          "max_position_embeddings": 64, "rope_theta": 10000.0, "other": 1}  # fmt: skip


def written(schedule: Schedule, encoding: str = "native", of: str = "llama", **config: Any) -> dict[str, Any]:
    whole, family = {**CONFIG, "model_type": of, **config}, by_model_type()[of]
    request = EncodeRequest(schedule, read_spec(whole, family), family, whole, Target())
    return all_encodings()[encoding].encode(request).config


def of_form(form: Form, factor: float = 1.0, **more: Any) -> Schedule:
    return Schedule(form.inv_freq(8), factor, 256, 64, form, **more)


FORMULA = 0.1 * math.log(4) + 1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (of_form(Interpolated(10000.0, 4.0)), {"rope_type": "linear", "factor": 4.0}),
        (of_form(Llama3(10000.0, 4.0, 64, 1.5, 5.0)), {
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0,
            "original_max_position_embeddings": 64}),
        (of_form(Yarn(10000.0, 4.0, 64), FORMULA), {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
            "beta_slow": 1.0, "attention_factor": FORMULA}),
        (of_form(Yarn(10000.0, 4.0, 64, 16.0, 2.0, False), FORMULA), {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
            "beta_slow": 2.0, "attention_factor": FORMULA, "truncate": False}),
        (of_form(Yarn(10000.0, 4.0, 64), 1.2), {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
            "beta_slow": 1.0, "attention_factor": 1.2, "mscale_all_dim": 1.0,
            "mscale": pytest.approx((1.2 * FORMULA - 1) / (0.1 * math.log(4)))}),
    ],
)  # fmt: skip
def test_a_rope_type_has_the_numbers_of_its_form_in_both_schemas(schedule: Schedule, expected: dict[str, Any]) -> None:
    config = written(schedule)
    assert config["rope_scaling"] == {**expected, "type": expected["rope_type"]}
    assert config["rope_parameters"] == {**expected, "rope_theta": 10000.0}
    assert (config["max_position_embeddings"], config["rope_theta"], config["other"]) == (256, 10000.0, 1)


def test_another_base_needs_no_scaling() -> None:
    config = written(of_form(Plain(500.0)))
    assert (config["rope_theta"], config["rope_scaling"]) == (500.0, None)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 500.0}


def test_keys_keep_their_order_and_new_ones_stand_beside_what_they_belong_to() -> None:
    config = written(of_form(Interpolated(10000.0, 4.0)))
    assert list(config) == [
        "model_type", "hidden_size", "head_dim", "num_attention_heads", "num_hidden_layers", "max_position_embeddings",
        "rope_theta", "rope_scaling", "rope_parameters", "other",
    ]  # fmt: skip
    part = {"a": 1, "b": 2}
    put(part, "c", 3, after="a")
    put(part, "d", 4, after="absent")
    put(part, "b", 5, after="a")
    assert list(part.items()) == [("a", 1), ("c", 3), ("b", 5), ("d", 4)]


def test_a_stale_original_length_at_the_top_is_replaced() -> None:
    yarn = written(of_form(Yarn(10000.0, 4.0, 64), FORMULA), original_max_position_embeddings=7)
    assert yarn["original_max_position_embeddings"] == 64
    assert written(of_form(Plain(500.0)), original_max_position_embeddings=7)["original_max_position_embeddings"] == 256
    assert "original_max_position_embeddings" not in written(of_form(Plain(500.0)))


@pytest.mark.parametrize("form", [Interpolated(10000.0, 4.0), Llama3(10000.0, 4.0, 64), Plain(500.0)])
def test_types_without_a_key_for_the_attention_factor(form: Form) -> None:
    with pytest.raises(UnsupportedBake, match="it has no such key"):
        written(of_form(form, 1.1))
    assert written(of_form(form, 1 + 1e-12))


def test_two_lists_as_longrope() -> None:
    form = LongRope(10000.0, (1.0, 1.0, 1.5, 2.0), (1.0, 2.0, 3.0, 4.0), 64)
    usual = math.sqrt(1 + math.log(4) / math.log(64))
    rope = written(of_form(form, usual, short_inv_freq=form.short_inv_freq(8)))["rope_scaling"]
    assert rope == {
        "rope_type": "longrope", "type": "longrope", "short_factor": [1.0, 1.0, 1.5, 2.0],
        "long_factor": [1.0, 2.0, 3.0, 4.0], "factor": 4.0, "attention_factor": usual,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    own = written(of_form(form, 1.3, short_inv_freq=form.short_inv_freq(8)))
    assert (own["rope_scaling"]["short_mscale"], own["rope_scaling"]["long_mscale"]) == (1.3, 1.3)
    assert own["original_max_position_embeddings"] == 64


def test_any_frequencies_as_two_equal_lists() -> None:
    inv_freq = np.array([1.0, 0.05, 0.004, 0.0003])
    schedule = Schedule(inv_freq, 1.2, 256, 64)
    rope = written(schedule, "factors")["rope_scaling"]
    np.testing.assert_allclose(1 / (np.array(rope["long_factor"]) * [1, 10, 100, 1000]), inv_freq, rtol=2e-7)
    assert rope["short_factor"] == rope["long_factor"]
    assert (rope["factor"], rope["attention_factor"], rope["original_max_position_embeddings"]) == (1.0, 1.2, 256)
    assert (rope["short_mscale"], rope["long_mscale"]) == (1.2, 1.2)
    plain = written(replace(schedule, attention_factor=1.0), "factors")["rope_scaling"]
    assert "short_mscale" not in plain
    assert plain["attention_factor"] == 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"short_inv_freq": np.ones(4)}, "it holds one list"), ({"softmax_scale": 1.5}, "only yarn carries"),
        ({"inv_freq": np.array([1.0, 0.0, 0.1, 0.0])}, "2 of 4 frequencies that are 0"),
    ],
)  # fmt: skip
def test_what_two_equal_lists_cannot_hold(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedBake) as refusal:
        written(replace(Schedule(np.array([1.0, 0.1, 0.01, 0.001]), 1.0, 256, 64), **change), "factors")
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("status", "deviation", "expected"),
    [
        ("exact", 0.02, ("approximate", "log-n in steps, up to 2.0% off; why")),
        ("rounded", 0.02, ("approximate", "log-n in steps, up to 2.0% off; why")),
        ("exact", 1e-3, ("exact", "why")), ("differs", 0.02, ("differs", "why")),
    ],
)  # fmt: skip
def test_steps_that_are_not_the_formula_make_a_verdict_approximate(
    status: Any, deviation: float, expected: tuple[str, str]
) -> None:
    found = with_deviation(Verdict("made@1", "Made 1", status, "why", "here"), deviation)
    assert (found.status, found.reason) == expected
