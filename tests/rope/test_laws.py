"""Laws of bases and attention factors at numbers that are published or can be computed on paper."""

from __future__ import annotations

import json
import math

import mpmath
import pytest

from ropeconv.rope.laws import (
    asymptotic_base,
    cosine_integral,
    critical_dimension,
    longrope_attention_factor,
    mscale_for,
    mscale_ratio,
    ntk_theta,
    temperature_attention_factor,
    theta_for_length,
    theta_steps,
)

from ..conftest import DATA

REFERENCE = json.loads((DATA / "schedules.json").read_text())


def test_the_law_of_bases_gives_the_reference_and_gradients_checkpoints() -> None:
    """The 262k and 1048k models of Llama 3: https://huggingface.co/gradientai/Llama-3-8B-Instruct-262k."""
    for row in REFERENCE["gradient"]:
        assert theta_for_length(row["theta"], row["L"], row["L_new"]) == pytest.approx(row["value"], rel=1e-13)
    lengths = [65536, 262144, 1048576, 4194304]
    steps = theta_steps(5e5, 8192, lengths)
    assert steps == [22443169, 283461213, 3580165449, 45218125209]
    assert [critical_dimension(base, length, 128) for base, length in zip(steps, lengths, strict=True)] == [70] * 4
    assert theta_for_length(100.0, 628, 628) == pytest.approx(100.0)
    assert ntk_theta(10000.0, 8.0, 6) == pytest.approx(10000 * 8**1.5)


@pytest.mark.parametrize(
    ("theta", "context", "rotary_dim", "dimension"),
    [(1e4, 4096, 128, 92), (5e5, 8192, 128, 70), (1e4, 6, 128, 0), (1.5, 4096, 128, 128), (2.0, 1 << 20, 16, 16)],
)
def test_the_critical_dimension(theta: float, context: int, rotary_dim: int, dimension: int) -> None:
    found = critical_dimension(theta, context, rotary_dim)
    assert (found, type(found)) == (dimension, int)


@pytest.mark.parametrize(
    ("factor", "slope", "intercept", "expected"),
    [
        (math.e, 0.1, 1.0, 1.1),
        (math.e, 0.07, 0.5, 0.57),
        (1.0000001, 0.1, 0.5, 0.5),
        (1.0, 0.1, 0.5, 1),
        (0.5, 9, 9, 1),
    ],
)
def test_an_attention_factor_is_1_where_nothing_is_scaled(
    factor: float, slope: float, intercept: float, expected: float
) -> None:
    assert temperature_attention_factor(factor, slope, intercept) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(0.5, 1), (1.0, 1), (math.sqrt(2), math.sqrt(25 / 24)), (4096, math.sqrt(2)), (32.0, 1.1902380714238083)],
)
def test_the_attention_factor_of_longrope_grows_from_a_factor_of_1_on(factor: float, expected: float) -> None:
    """sqrt(1 + ln s / ln L) with L = 4096 = 2^12; the last is that of Phi-3-mini-128k."""
    assert longrope_attention_factor(factor, 4096) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("attention_factor", [0.5, 0.8, 1.0, 1.1, 1.5, 1 / (0.1 * math.log(4) + 1)])
def test_a_pair_of_mscales_gives_its_ratio_and_is_never_0(attention_factor: float) -> None:
    """The last ratio would need mscale = 0 with mscale_all_dim = 1, which readers take as absent."""
    mscale, all_dim = mscale_for(4.0, attention_factor)
    assert mscale_ratio(4.0, mscale, all_dim) == pytest.approx(attention_factor, rel=1e-12)
    assert all_dim == (2.0 if attention_factor == 1 / (0.1 * math.log(4) + 1) else 1.0)
    assert abs(mscale) > 1e-6
    assert mscale_ratio(math.e**2, 3.0, 1.0) == pytest.approx(1.6 / 1.2)


@pytest.mark.parametrize("x", [0.01, 0.6165, 1.0, 5.0, 15.0])
def test_the_cosine_integral(x: float) -> None:
    assert cosine_integral(x) == pytest.approx(float(mpmath.ci(x)), abs=1e-11)


def test_the_estimate_of_a_base_is_the_length_over_the_zero_of_the_cosine_integral() -> None:
    assert asymptotic_base(4096) == pytest.approx(4096 / float(mpmath.findroot(mpmath.ci, 0.6)), rel=1e-14)
