"""How far schedules reach, with equal and unequal variances: published figures, sums term by term,
and by hand.
"""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeconv.rope.bound.reach import first_violation, head_reach, margins, reach, violations
from ropeconv.rope.bound.sums import (
    PairWeights,
    exact_value,
    normalised_variances,
    pair_weights,
    score_bound,
)
from ropeconv.rope.forms import Plain, base_inv_freq
from ropeconv.rope.spec import RopeSpec

from ...support.baking import recipe_of
from .naive import sums

# first violation; L = 4096, b = 1e4, s = 8, and L = 8192, b = 5e5, s = 16
EXTENDED = {
    "linear": (13649, 295005),
    "ntk-old": (6505, 61936),
    "ntk": (5732, 102996),
    "ntk-fixed": (6719, 64679),
    "mixed": (5687, 122111),
    "by-parts": (9767, 165156),
    "yarn": (8886, 199047),
}


@pytest.mark.parametrize("method", EXTENDED)
def test_first_violations_of_schedules(method: str) -> None:
    for base, length, factor, first in zip(
        (1e4, 5e5), (4096, 8192), (8.0, 16.0), EXTENDED[method], strict=True
    ):
        spec = RopeSpec(128, 128, Plain(base), length, length)
        schedule = recipe_of(method, factor).schedule(spec)
        assert first_violation(schedule.inv_freq, 0, 1 << 20) == first


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(1e-6, 3.2), min_size=1, max_size=70), st.floats(0, 8), st.integers(1, 3000)
)
def test_any_vector_term_by_term(vector: list[float], unrotated: float, length: int) -> None:
    inv_freq = np.array(vector)
    plain = sums(inv_freq, unrotated, 1, length) if length > 1 else np.empty(0)
    clear = np.abs(plain) > 1e-9
    distances = np.concatenate([np.empty(0, dtype=int), *violations(inv_freq, unrotated, length)])
    marked = np.zeros(max(0, length - 1), dtype=bool)
    marked[distances - 1] = True
    assert (marked == (plain < 0))[clear].all()


@pytest.mark.parametrize(
    ("inv_freq", "length"),
    [
        (base_inv_freq(1e4, 128), 4096),
        (base_inv_freq(1e4, 128), 60000),
        (np.array([1e-4, 1e-4]), 70000),
    ],
)
def test_runs_of_neighbours(inv_freq: np.ndarray, length: int) -> None:
    """The last one's runs are longer than the chunks in which they are found."""
    result = reach(inv_freq, 0, length)
    plain = 1 + np.flatnonzero(sums(inv_freq, 0, 1, length) < 0)
    splits = np.flatnonzero(np.diff(plain) > 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(plain, splits)]
    assert (result.count, result.runs) == (len(plain), len(runs))
    assert list(result.places) == runs[:100]


def test_zero_is_decided_exactly() -> None:
    """At the float64 next to pi, 1 + cos is 7e-33, so B(1) = 1 + 2 cos(pi) + cos(x) is above 0 for
    x = 1e-20 only.
    """
    assert first_violation(np.array([np.pi, np.pi, 1e-20]), 1.0, 100) is None
    assert first_violation(np.array([np.pi, np.pi, 1e-9]), 1.0, 100) == 1


def test_exact_values_at_a_hundred_million() -> None:
    inv_freq = base_inv_freq(5e5, 64)
    with mpmath.workdps(50):
        expected = (
            mpmath.fsum(mpmath.cos(10**8 * mpmath.mpf(float(value))) for value in inv_freq) + 3
        )
        assert abs(mpmath.mpf(str(exact_value(inv_freq, 3.0, 10**8))) - expected) < mpmath.mpf(
            "1e-38"
        )


def test_partial_rotation() -> None:
    assert first_violation(base_inv_freq(1e4, 96), 16, 1 << 20) == 18607
    result = reach(base_inv_freq(10.0, 32), 16, 10**6)
    assert result.automatic
    assert result.to_dict()["automatic"]
    assert result.effective_length is None


def test_by_hand() -> None:
    """Two pairs that turn by 90 and 180 degrees per token: S_1 = i, S_2 = i - 1; then -1 and 0."""
    bounds = score_bound(np.array([math.pi / 2, math.pi]), np.array([0, 1, 2, 4]))
    np.testing.assert_allclose(bounds, [1.5, (1 + math.sqrt(2)) / 2, 0.5, 1.5], atol=1e-12)
    reversed_ = score_bound(np.array([math.pi, math.pi / 2]), np.array([2]))
    np.testing.assert_allclose(reversed_, [0.5], atol=1e-12)
    np.testing.assert_allclose(score_bound(base_inv_freq(1e4, 128), np.zeros(1)), [32.5])


def test_margins_are_the_smallest_sums_of_four_intervals() -> None:
    inv_freq = base_inv_freq(1e4, 16)
    sums_of = [0.0]
    sums_of += [math.fsum(map(math.cos, distance * inv_freq)) + 1.5 for distance in range(1, 100)]
    at, lowest = margins(inv_freq, 1.5, 100, 4)
    expected = [
        min(range(*ends), key=sums_of.__getitem__) for ends in pairwise([1, 3, 10, 32, 100])
    ]
    assert list(at) == expected
    np.testing.assert_allclose(lowest, [sums_of[distance] for distance in expected], atol=1e-4)


RANDOM = np.random.default_rng(16)


def test_weights_by_hand() -> None:
    """Four dimensions: the queries' pairs (0, 2) and (1, 3) vary by 10 and 20, the keys' by 40 and
    5.
    """
    queries = np.array([[1.0, 4, 9, 16]])
    keys = np.array([[30.0, 2, 10, 3]])
    half = pair_weights(queries, keys, 4)
    np.testing.assert_allclose(
        half.rotated, [[2 * 20 / 30, 2 * 10 / 30]]
    )  # sqrt(10 40) = 20, sqrt(20 5) = 10
    np.testing.assert_allclose(half.unrotated, [0])
    interleaved = pair_weights(queries, keys, 4, "interleaved")
    weights = [math.sqrt(5 * 32), math.sqrt(25 * 13)]
    np.testing.assert_allclose(
        interleaved.rotated, [[2 * weight / sum(weights) for weight in weights]]
    )
    partial = pair_weights(queries, keys, 2)
    weights = [math.sqrt(5 * 32), math.sqrt(90) + math.sqrt(48)]
    np.testing.assert_allclose(partial.rotated, [[2 * weights[0] / sum(weights)]])
    np.testing.assert_allclose(partial.unrotated, [2 * weights[1] / sum(weights)])


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(128, 128), (96, 72), (64, 64), (128, 32)])
@pytest.mark.parametrize("method", ["none", "linear", "yarn", "mixed"])
def test_equal_variances_give_the_effective_length(
    head_dim: int, rotary_dim: int, method: str
) -> None:
    spec = RopeSpec(head_dim, rotary_dim, Plain(1e4), 4096, 4096)
    recipe = None if method == "none" else recipe_of(method, 8.0, attention_factor=1.0)
    schedule = spec.current() if recipe is None else recipe.schedule(spec)
    equal = pair_weights(np.full((4, head_dim), 3.7), np.full((2, head_dim), 0.2), rotary_dim)
    np.testing.assert_allclose(equal.rotated, 1, rtol=1e-14)
    np.testing.assert_allclose(equal.unrotated, spec.unrotated, rtol=1e-14)
    expected = reach(schedule.inv_freq, spec.unrotated, 100_000)
    first, count = head_reach(schedule.inv_freq, equal.times(schedule.attention_factor), 100_000)
    assert first.tolist() == [(expected.first_violation or 0) if expected.count else 0] * 4
    assert count.tolist() == [expected.count] * 4


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 6), st.integers(2, 3000))
def test_term_by_term(seed: int, pairs: int, heads: int, length: int) -> None:
    random = np.random.default_rng(seed)
    inv_freq = random.uniform(1e-5, 3, pairs)
    weights = PairWeights(random.exponential(1, (heads, pairs)), random.exponential(0.3, heads))
    cosines = np.cos(np.outer(inv_freq, np.arange(1, length)))
    naive = (weights.rotated[:, :, None] * cosines).sum(axis=1) + weights.unrotated[:, None]
    first, count = head_reach(inv_freq, weights, length)
    assert first.dtype == count.dtype == np.int64
    assert count.tolist() == (naive < 0).sum(axis=1).tolist()
    assert first.tolist() == [int(row.argmax()) + 1 if row.any() else 0 for row in naive < 0]


def rotated(vectors: np.ndarray, inv_freq: np.ndarray, distance: int) -> np.ndarray:
    """Vectors [n, d] with pairs (i, i + r/2) turned by distance x inv_freq; the dimensions behind
    them stay.
    """
    half = len(inv_freq)
    turned = (vectors[:, :half] + 1j * vectors[:, half : 2 * half]) * np.exp(
        1j * distance * inv_freq
    )
    return np.concatenate([turned.real, turned.imag, vectors[:, 2 * half :]], axis=1)


def test_variances_behind_a_norm_are_those_of_samples() -> None:
    """Also behind a head of zeros; a constant divisor would give something else."""
    spread = np.array([[0.0] * 5, [9.0, 1, 0.25, 0, 2]])
    mean = np.array([[0.0] * 5, [0.0, 2, -1, 0.5, 0]])
    samples = RANDOM.normal(size=(400_000, 5)) * np.sqrt(spread[1]) + mean[1]
    divided = samples / np.sqrt(np.square(samples).mean(axis=1, keepdims=True))
    variances = normalised_variances(spread, mean)
    np.testing.assert_allclose(variances[1], divided.var(axis=0), atol=0.01)
    assert not variances[0].any()
    constant = 5 * spread[1] / (spread[1] + mean[1] ** 2).sum()
    assert np.abs(constant - divided.var(axis=0)).max() > 0.3
    np.testing.assert_allclose(
        normalised_variances(np.full((1, 7), 4.0), np.zeros((1, 7))), 1, rtol=1e-9
    )
    single = normalised_variances(np.array([[3.0, 0, 0]]), np.zeros((1, 3)))
    np.testing.assert_allclose(single, [[3, 0, 0]], atol=1e-9)


@pytest.mark.parametrize(
    ("theta", "rotated", "unrotated", "attention_factor", "length"),
    [
        (1.0, 1.2, 0.8, 1.0, 2),  # 1.2 cos m + 0.8 is negative from m = 3 on
        (1.0, 1.2, 0.8, 1.5, 1),  # 1.5^2 1.2 cos m + 0.8 from m = 2 on
        (1.0, 0.0, 0.0, 1.0, None),  # a head without variance
        (math.pi, 1.5, 0.5, 1.0, 0),
        (math.pi, 0.5, 1.5, 1.0, None),  # negative at every odd distance, and nowhere
        (math.pi / 3, 1.5, 0.5, 1.0, 1),  # cos of 60 m degrees is below -1/3 at 2, 3 and 4
        (
            math.pi,
            1.0,
            1.0,
            1.0,
            None,
        ),  # cos of the float64 next to pi is -1: the sum is 0 at every odd distance
    ],
)
def test_the_effective_length_of_one_pair(
    theta: float, rotated: float, unrotated: float, attention_factor: float, length: int | None
) -> None:
    weights = PairWeights(np.array([[rotated]]), np.array([unrotated])).times(attention_factor)
    assert head_reach(np.array([theta]), weights, 5)[0].tolist() == [
        0 if length is None else length + 1
    ]
