"""What encodings write into a config for each form of a schedule, key by key."""

import math
import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from ropeconv.convert.config_edit import RopeSetting
from ropeconv.convert.encoding import original_for
from ropeconv.convert.encodings.factors import factor_list
from ropeconv.convert.encodings.native import native
from ropeconv.errors import UnsupportedBake
from ropeconv.models.registry import by_model_type
from ropeconv.rope.forms import Form, InterpolatedForm, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.schedule import QueryScaling, Schedule
from ropeconv.rope.spec import Proportional, RopeSpec

from .made_requests import CONFIG, encoded


def written(
    schedule: Schedule, encoding: str = "native", of: str = "llama", **config: Any
) -> dict[str, Any]:
    return encoded(encoding, schedule, {**CONFIG, "other": 1, "model_type": of, **config}).config


def of_form(form: Form, factor: float = 1.0, **more: Any) -> Schedule:
    return Schedule(form.inv_freq(8), factor, 256, 64, form, **more)


FORMULA = 0.1 * math.log(4) + 1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (of_form(InterpolatedForm(10000.0, 4.0)), {"rope_type": "linear", "factor": 4.0}),
        (
            of_form(Llama3(10000.0, 4.0, 64, 1.5, 5.0)),
            {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.5,
                "high_freq_factor": 5.0,
                "original_max_position_embeddings": 64,
            },
        ),
        (
            of_form(Yarn(10000.0, 4.0, 64), FORMULA),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "attention_factor": FORMULA,
            },
        ),
        (
            of_form(Yarn(10000.0, 4.0, 64, 16.0, 2.0, False), FORMULA),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": FORMULA,
                "truncate": False,
            },
        ),
        (
            of_form(Yarn(10000.0, 4.0, 64), 1.2),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "attention_factor": 1.2,
                "mscale_all_dim": 1.0,
                "mscale": pytest.approx((1.2 * FORMULA - 1) / (0.1 * math.log(4))),
            },
        ),
    ],
)
def test_a_rope_type_has_the_numbers_of_its_form_in_both_schemas(
    schedule: Schedule, expected: dict[str, Any]
) -> None:
    config = written(schedule)
    assert config["rope_scaling"] == {**expected, "type": expected["rope_type"]}
    assert config["rope_parameters"] == {**expected, "rope_theta": 10000.0}
    assert (config["max_position_embeddings"], config["rope_theta"], config["other"]) == (
        256,
        10000.0,
        1,
    )


def test_another_base_needs_no_scaling() -> None:
    config = written(of_form(Plain(500.0)))
    assert (config["rope_theta"], config["rope_scaling"]) == (500.0, None)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 500.0}


def test_two_lists_as_longrope() -> None:
    form = LongRope(10000.0, (1.0, 1.0, 1.5, 2.0), (1.0, 2.0, 3.0, 4.0), 64)
    usual = math.sqrt(1 + math.log(4) / math.log(64))
    rope = written(of_form(form, usual, short_inv_freq=form.short_inv_freq(8)))["rope_scaling"]
    assert rope == {
        "rope_type": "longrope",
        "type": "longrope",
        "short_factor": [1.0, 1.0, 1.5, 2.0],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
        "factor": 4.0,
        "attention_factor": usual,
        "original_max_position_embeddings": 64,
    }
    config = written(of_form(form, 1.3, short_inv_freq=form.short_inv_freq(8)))
    assert (config["rope_scaling"]["short_mscale"], config["rope_scaling"]["long_mscale"]) == (
        1.3,
        1.3,
    )
    assert config["original_max_position_embeddings"] == 64


def test_any_frequencies_as_two_equal_lists() -> None:
    inv_freq = np.array([1.0, 0.05, 0.004, 0.0003])
    schedule = Schedule(inv_freq, 1.2, 256, 64)
    rope = written(schedule, "factors")["rope_scaling"]
    np.testing.assert_allclose(
        1 / (np.array(rope["long_factor"]) * [1, 10, 100, 1000]), inv_freq, rtol=2e-7
    )
    assert rope["short_factor"] == rope["long_factor"]
    assert (rope["factor"], rope["attention_factor"], rope["original_max_position_embeddings"]) == (
        1.0,
        1.2,
        256,
    )
    assert (rope["short_mscale"], rope["long_mscale"]) == (1.2, 1.2)
    plain = written(replace(schedule, attention_factor=1.0), "factors")["rope_scaling"]
    assert "short_mscale" not in plain
    assert plain["attention_factor"] == 1.0


# The encoding `native`


def spec(**changes: Any) -> RopeSpec:
    given: dict[str, Any] = {
        "head_dim": 8,
        "rotary_dim": 8,
        "form": Plain(1e4),
        "original_context": 64,
        "context": 64,
    }
    return RopeSpec(**{**given, **changes})


ARBITRARY = Schedule(np.array([1.0, 0.1, 0.01, 0.001]), 1.0, 256, 64)


def setting(schedule: Schedule, family: str = "llama", of: RopeSpec | None = None) -> RopeSetting:
    return native(schedule, of or spec(), by_model_type()[family])


@pytest.mark.parametrize(
    ("schedule", "family", "of", "words"),
    [
        (ARBITRARY, "llama", spec(), "no rope type has its formula; use --encoding factors"),
        (
            replace(ARBITRARY, inv_freq=np.array([1.0, 0.1, 0.0, 0.0])),
            "llama",
            spec(),
            "no rope type has its formula; use --encoding buffers, or --to gguf",
        ),
        (
            of_form(Yarn(1e4, 4.0, 64), FORMULA),
            "phi3",
            spec(),
            "its class supports default, longrope; use",
        ),
        (
            of_form(Yarn(1e4, 4.0, 64), FORMULA, short_inv_freq=np.ones(4)),
            "phi3",
            spec(),
            "give one list: leave --keep-short out",
        ),
        (of_form(Llama3(1e4, 4.0, 64), 1.1), "llama", spec(), "rope_type llama3.* no key for that"),
        (of_form(Plain(1e4), 1.1), "llama", spec(), "it has no key for that"),
        (
            of_form(InterpolatedForm(1e4, 4.0), 1.1),
            "llama",
            spec(),
            "factor 1.1 .*rope_type linear.* no key for that",
        ),
        (
            of_form(Proportional(1e4, 1.0, 0.5)),
            "llama",
            spec(rotary_dim=4),
            "another meaning there",
        ),
        (of_form(Proportional(1e4, 1.0, 0.5)), "phi", spec(), "another meaning there"),
        (
            of_form(Yarn(1e4, 4.0, 64), FORMULA),
            "ministral3",
            spec(original_context=32),
            "must remain 32",
        ),
        (
            of_form(Llama3(1e4, 4.0, 64)),
            "ministral3",
            spec(original_context=32),
            "an original context of 64",
        ),
        (
            of_form(Yarn(1e4, 4.0, 64), FORMULA),
            "ministral3",
            spec(query_scaling=QueryScaling(0.1, 16)),
            "must remain 16; use --encoding factors",
        ),
        (
            of_form(
                LongRope(1e4, (1.0,) * 4, (4.0,) * 4, 64),
                short_inv_freq=np.array([1.0, 0.1, 0.01, 0.001]),
            ),
            "ministral3",
            spec(query_scaling=QueryScaling(0.1, 16)),
            "must remain 16; give one list",
        ),
    ],
)
def test_what_no_rope_type_holds(schedule: Schedule, family: str, of: RopeSpec, words: str) -> None:
    with pytest.raises(UnsupportedBake) as refusal:
        setting(schedule, family, of)
    assert re.search(words, str(refusal.value)), str(refusal.value)


def mscale(factor: float, softmax: float, attention_factor: float) -> dict[str, Any]:
    schedule = of_form(Yarn(1e4, factor, 64), attention_factor, softmax_scale=softmax)
    return setting(schedule, "deepseek_v3", spec(mla=True)).rope


@pytest.mark.parametrize(
    ("scale", "everywhere"), [(1.0, 1.0), (0.707, 0.707), (0.5, 1.0), (1.0, 0.5)]
)
def test_the_pair_of_mla_gives_both_numbers_again(scale: float, everywhere: float) -> None:
    """transformers: cos and sin times (0.1 m ln s + 1) / (0.1 m_all ln s + 1), and logits times the
    latter squared.
    """
    log = 0.1 * math.log(4)
    rope = mscale(4.0, (1 + everywhere * log) ** 2, (1 + scale * log) / (1 + everywhere * log))
    assert rope["mscale"] == pytest.approx(scale, abs=1e-11)
    assert rope["mscale_all_dim"] == pytest.approx(everywhere, abs=1e-11)
    assert "attention_factor" not in rope


# Divisors over the powers of a base, and lengths from which a class derives an attention factor,
# against numpy


def ulps(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.abs(
        actual.view(np.int32).astype(np.int64) - expected.astype(np.float32).view(np.int32)
    )


def test_divisors_hold_for_both_roundings_of_a_power_that_is_near_the_middle() -> None:
    """Where a runtime may round theta^x to either of two floats; elsewhere most are met exactly."""
    exact_hits = list[np.ndarray]()
    both = list[np.ndarray]()
    for theta, seed in product((1e4, 123456.0, 5e5, 1e6, 8e6), range(4)):
        exponent = (np.arange(0, 256, 2).astype(np.float32) / np.float32(256)).astype(np.float64)
        exact = np.float64(np.float32(theta)) ** exponent
        inv_freq = 1 / exact / np.random.default_rng(seed).uniform(1, 40, 128)
        power = exact.astype(np.float32)
        other = np.nextafter(power, np.where(exact > power, np.float32(np.inf), np.float32(0)))
        doubtful = np.abs(exact - power) > 0.4 * np.abs(other.astype(np.float64) - power)
        factors = factor_list(inv_freq, theta, 256)
        ulp, other_ulp = (
            ulps(np.float32(1) / (factors * rounding), inv_freq) for rounding in (power, other)
        )
        exact_hits.append(ulp[~doubtful] == 0)
        both.append(np.maximum(ulp, other_ulp)[doubtful])
    assert np.concatenate(exact_hits).mean() > 0.75
    assert np.concatenate(both).max() <= 2


def test_lengths_from_which_an_attention_factor_follows() -> None:
    for context, factor in ((131072, 1.19), (4096, 1.1), (1 << 20, 1.3)):
        longer, original, (note,) = original_for(context, factor)
        assert (
            f"declares {longer} tokens (for {context}) and an original length of {original}" in note
        )
        assert math.sqrt(1 + math.log(longer / original) / math.log(original)) == pytest.approx(
            factor, abs=1e-6
        )
        assert context <= longer < context + 4096
        errors = {
            m: abs(math.sqrt(math.log(m) / math.log(round(m ** (1 / factor**2)))) - factor)
            for m in range(context, longer + 1)
        }
        assert min(errors, key=lambda m: errors[m]) == longer  # no shorter one is as near
    assert original_for(4096, 1.0) == original_for(4096, 1 + 1e-8) == (4096, 4096, ())
    assert original_for(16, 2.0)[:2] == original_for(4, 2.0)[:2] == (16, 2)
    assert original_for(10546, 2.0)[:2] == (
        14641,
        11,
    )  # 4095 tokens more than wanted, and no further
    with pytest.raises(UnsupportedBake, match="no pair of lengths"):
        original_for(10545, 2.0)
    for impossible in (0.9, 30.0):
        with pytest.raises(UnsupportedBake, match="no pair of lengths"):
            original_for(4096, impossible)
