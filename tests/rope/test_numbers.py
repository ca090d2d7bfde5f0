"""Laws, lengths and log-n at numbers that can be computed on paper, or that are published."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from ropeconv.rope.errors import RecipeError
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
from ropeconv.rope.lengths import factor_over, format_tokens, is_length, parse_factor, parse_tokens
from ropeconv.rope.log_n import LogN, QueryScaling, approximate_log_n, deviation, effective_scaling


def test_published_bases_and_factors() -> None:
    assert theta_steps(500000.0, 8192, [262144, 1048576]) == [283461213.0, 3580165449.0]  # Gradient's checkpoints
    assert theta_for_length(100.0, 628, 628) == pytest.approx(100.0)
    assert ntk_theta(10000.0, 8.0, 6) == pytest.approx(10000 * 8**1.5)
    assert [critical_dimension(10000.0, 4096, 128), critical_dimension(500000.0, 8192, 128)] == [92, 70]
    assert [critical_dimension(10000.0, 6, 128), critical_dimension(2.0, 1 << 20, 16)] == [0, 16]
    assert temperature_attention_factor(math.e) == pytest.approx(1.1)
    assert [temperature_attention_factor(value) for value in (1.0, 0.5)] == [1.0, 1.0]
    assert temperature_attention_factor(math.e, 0.07, 0.5) == pytest.approx(0.57)
    assert longrope_attention_factor(32.0, 4096) == pytest.approx(1.1902380714238083)  # Phi-3-mini-128k
    assert [longrope_attention_factor(value, 4096) for value in (1.0, 0.5)] == [1.0, 1.0]
    assert mscale_ratio(math.e**2, 3.0, 1.0) == pytest.approx(1.6 / 1.2)


@pytest.mark.parametrize("wanted", [0.8, 1.0, 1.3, 1 / (0.1 * math.log(4) + 1)])
def test_a_pair_of_mscales_gives_its_ratio_and_is_never_0(wanted: float) -> None:
    """The last ratio would need mscale = 0 with mscale_all_dim = 1, which readers take as absent."""
    mscale, all_dim = mscale_for(4.0, wanted)
    assert mscale_ratio(4.0, mscale, all_dim) == pytest.approx(wanted, rel=1e-12)
    assert all_dim == (2.0 if wanted == 1 / (0.1 * math.log(4) + 1) else 1.0)
    assert abs(mscale) > 1e-6


def test_the_cosine_integral_and_its_zero() -> None:
    for x in (0.01, 0.5, 1.0, 3.0, 10.0):
        assert cosine_integral(x) == pytest.approx(float(mpmath.ci(x)), abs=1e-12)
    assert asymptotic_base(1000) == pytest.approx(1000 / float(mpmath.findroot(mpmath.ci, 0.6)), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("1", 1), ("131072", 131072), ("128k", 131072), ("128 K", 131072), ("2M", 2097152), ("131k", 131072),
     ("65k", 65536), ("262k", 262144), ("524k", 524288), ("1048k", 1048576), ("2097k", 2097152), ("4194k", 4194304)],
)  # fmt: skip
def test_lengths(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["0", "0k", "-1", "1.5k", "", "k", "1g"])
def test_no_lengths(text: str) -> None:
    with pytest.raises(RecipeError, match="not a number of tokens"):
        parse_tokens(text)


@pytest.mark.parametrize(("tokens", "text"), [(1 << 20, "1M"), (3 << 20, "3M"), (131072, "128k"), (1000, "1000"),
                                              (1025, "1025"), (1536 << 10, "1536k")])  # fmt: skip
def test_lengths_are_written_the_shortest_way(tokens: int, text: str) -> None:
    assert format_tokens(tokens) == text
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(("text", "factor"), [("4", 4.0), ("0.5", 0.5), ("999", 999.0), ("128k", "128k"), ("2m", "2M"),
                                              ("8K", "8k")])  # fmt: skip
def test_factors(text: str, factor: float | str) -> None:
    assert parse_factor(text, "--yarn") == factor


@pytest.mark.parametrize(
    ("text", "words"),
    [("1000", "write a length as --yarn 128k"), ("131072", "write a length as --yarn 128k"),
     ("4096", "write a length as --yarn 4k"), ("4097", "write a length as --yarn 128k"),
     (str(1 << 27), "write a length as --yarn 128k"), ("0k", "is neither"), ("four", "is neither")],
)  # fmt: skip
def test_no_factors(text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse_factor(text, "--yarn")


def test_a_length_as_a_factor() -> None:
    assert factor_over("16k", 4096, "--yarn") == 4.0
    assert factor_over(3, 4096, "--yarn") == 3.0
    assert is_length("128k")
    assert not is_length(128)
    assert not is_length("0k")
    for within in ("4k", "2k"):
        with pytest.raises(RecipeError, match="within the trained 4,096 tokens.*such as --yarn 16k"):
            factor_over(within, 4096, "--yarn")


def test_log_n_by_hand() -> None:
    positions = np.array([0.0, 9.0, 99.0, 999.0])
    np.testing.assert_allclose(LogN("full", 100).scale(positions), [0, 0.5, 1, 1.5], atol=1e-15)
    np.testing.assert_allclose(LogN("clamped", 100).scale(positions), [1, 1, 1, 1.5])
    np.testing.assert_allclose(QueryScaling(2.0, 10, 3.0).scale(positions), 3 * (1 + 2 * np.log([1, 1, 10, 100])))
    assert LogN("full", 2).length == 2
    with pytest.raises(RecipeError, match="log-n over 1 token"):
        LogN("full", 1)


def test_the_approximation_of_log_n() -> None:
    steps = approximate_log_n(LogN("clamped", 64))
    assert (steps.beta, steps.length, steps.gain) == (pytest.approx(1 / math.log(64)), 64, 1.0)
    full = approximate_log_n(LogN("full", 64))
    assert (full.beta, full.length, full.gain) == (pytest.approx(8192 / math.log(64)), 1, 1 / 8192)
    # largest at the beginning of the second step: 2 against ln 65 / ln 64, and at the end of none
    at_64 = math.log(128) / math.log(64)
    expected = (at_64 - math.log(65) / math.log(64)) / (math.log(65) / math.log(64))
    assert deviation(LogN("clamped", 64), steps, 1024) == pytest.approx(expected)
    assert deviation(LogN("clamped", 64), steps, 64) == pytest.approx(0)
    wrong = QueryScaling(0.0, 64)  # always 1: furthest at the very last position
    assert deviation(LogN("clamped", 64), wrong, 1000) == pytest.approx(1 - math.log(64) / math.log(1000))


def test_an_approximation_counts_where_it_differs_by_more_than_noise() -> None:
    log_n, steps = LogN("full", 64), QueryScaling(1.0, 1)
    assert effective_scaling(log_n, steps, 1e-3) is log_n
    assert effective_scaling(log_n, steps, 1.01e-3) is steps
    assert effective_scaling(log_n, None, 1.0) is log_n
    assert effective_scaling(None, None, 0.0) is None
