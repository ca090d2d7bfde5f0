"""The critical dimension, and the bound."""

import json

import numpy as np
import pytest

from ropeconv.rope.bound import first_violation, margins, wide_window
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import base_inv_freq
from ropeconv.rope.laws import critical_dimension, mscale_for, mscale_ratio
from ropeconv.rope.lengths import parse_tokens

from ..conftest import DATA

REFERENCE = json.loads((DATA / "schedules.json").read_text())


def test_critical_dimension() -> None:
    assert critical_dimension(1e4, 4096, 128) == 92
    assert critical_dimension(5e5, 8192, 128) == 70


@pytest.mark.parametrize("amplitude", [0.5, 0.8, 1.0, 1.1, 1.5, 1 / 1.1386294361119891])
def test_mscale_pair_gives_the_amplitude(amplitude: float) -> None:
    mscale, everywhere = mscale_for(4.0, amplitude)
    assert mscale
    assert everywhere
    assert mscale_ratio(4.0, mscale, everywhere) == pytest.approx(amplitude, rel=1e-12)


@pytest.mark.parametrize(("length", "begin"), [(1024, 6018), (4096, 28629), (8192, 96422)])
def test_first_window_one_percent_wide(length: int, begin: float) -> None:
    """The left ends were found by an exact sweep, in other code."""
    low, high = wide_window(length, 128, 128)
    assert low == pytest.approx(begin, rel=1e-4)
    assert high / low >= 1.00999
    for theta in np.geomspace(low * 1.0001, high * 0.9999, 7):
        values = np.cos(np.multiply.outer(np.arange(1, length), base_inv_freq(theta, 128))).sum(axis=1)
        assert values.min() >= 0
    below = np.cos(np.multiply.outer(np.arange(1, length), base_inv_freq(low * 0.98, 128))).sum(axis=1)
    assert below.min() < 0


@pytest.mark.parametrize(("theta", "length", "first"), [(1e4, 4096, 1707), (5e5, 20000, 18438), (1e6, 32768, 27115)])
def test_first_violation_of_known_bases(theta: float, length: int, first: int) -> None:
    assert first_violation(base_inv_freq(theta, 128), length, 128) == first
    assert first_violation(base_inv_freq(theta, 128), first, 128) is None


def test_margins_are_the_plain_sum() -> None:
    inv_freq = base_inv_freq(1e4, 64)
    plain = np.cos(np.multiply.outer(np.arange(1000, 2000), inv_freq)).sum(axis=1) + 3
    np.testing.assert_allclose(margins(inv_freq, 3.0, 1000, 2000), plain, atol=1e-10)


def test_half_rotated_models_have_no_bound() -> None:
    assert first_violation(base_inv_freq(10.0, 32), 10**6, 64) is None
    with pytest.raises(RecipeError, match="every base will do"):
        wide_window(4096, 32, 64)


@pytest.mark.parametrize(("text", "count"), [("131072", 131072), ("128k", 131072), ("1M", 1048576), (" 4K", 4096)])
def test_tokens(text: str, count: int) -> None:
    assert parse_tokens(text) == count


@pytest.mark.parametrize("text", ["", "0", "-4k", "4.5k", "128kb", "many"])
def test_what_is_not_a_number_of_tokens(text: str) -> None:
    with pytest.raises(RecipeError, match="not a number of tokens"):
        parse_tokens(text)
