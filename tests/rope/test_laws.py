"""The critical dimension, attention factors as pairs, numbers of tokens."""

import json
import math

import mpmath
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.laws import (
    asymptotic_base,
    cosine_integral,
    critical_dimension,
    longrope_attention_factor,
    mscale_for,
    mscale_ratio,
    temperature_attention_factor,
)
from ropeconv.rope.lengths import parse_tokens

from ..conftest import DATA

REFERENCE = json.loads((DATA / "schedules.json").read_text())


def test_critical_dimension() -> None:
    assert critical_dimension(1e4, 4096, 128) == 92
    assert critical_dimension(5e5, 8192, 128) == 70
    whole = critical_dimension(1.5, 4096, 128)
    assert (whole, type(whole), critical_dimension(1e4, 6, 128)) == (128, int, 0)


def test_an_attention_factor_is_1_where_nothing_is_scaled() -> None:
    """Whatever its intercept is, up to s = 1."""
    assert [temperature_attention_factor(factor, 0.1, 0.5) for factor in (0.5, 1.0)] == [1.0, 1.0]
    assert temperature_attention_factor(1.0000001, 0.1, 0.5) == pytest.approx(0.5)


def test_the_attention_factor_of_longrope_grows_from_a_factor_of_1_on() -> None:
    """sqrt(1 + ln s / ln L): with L = 4096 = 2^12 and s = sqrt 2 that is sqrt(1 + 1/24), and sqrt 2 with s = L."""
    assert [longrope_attention_factor(factor, 4096) for factor in (0.5, 1.0)] == [1.0, 1.0]
    assert longrope_attention_factor(math.sqrt(2), 4096) == pytest.approx(math.sqrt(25 / 24), rel=1e-14)
    assert longrope_attention_factor(4096, 4096) == pytest.approx(math.sqrt(2), rel=1e-14)


@pytest.mark.parametrize("x", [0.01, 0.6165, 1.0, 5.0, 15.0])
def test_cosine_integral(x: float) -> None:
    assert cosine_integral(x) == pytest.approx(float(mpmath.ci(x)), abs=1e-11)


def test_the_estimate_is_the_length_over_its_zero() -> None:
    assert asymptotic_base(4096) == pytest.approx(4096 / float(mpmath.findroot(mpmath.ci, 0.6)), rel=1e-14)


@pytest.mark.parametrize("attention_factor", [0.5, 0.8, 1.0, 1.1, 1.5, 1 / 1.1386294361119891])
def test_mscale_pair_gives_the_attention_factor(attention_factor: float) -> None:
    mscale, everywhere = mscale_for(4.0, attention_factor)
    assert mscale
    assert everywhere
    assert mscale_ratio(4.0, mscale, everywhere) == pytest.approx(attention_factor, rel=1e-12)


@pytest.mark.parametrize(("text", "count"), [("131072", 131072), ("128k", 131072), ("1M", 1048576), (" 4K", 4096)])
def test_tokens(text: str, count: int) -> None:
    assert parse_tokens(text) == count


@pytest.mark.parametrize("text", ["", "0", "-4k", "4.5k", "128kb", "many"])
def test_what_is_not_a_number_of_tokens(text: str) -> None:
    with pytest.raises(RecipeError, match="not a number of tokens"):
        parse_tokens(text)
