"""Sums with unequal variances: by hand, from samples, term by term, and equal ones against the tables' own search."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeconv.rope.bound import reach
from ropeconv.rope.bound.variances import PairWeights, normalised_variances, pair_weights
from ropeconv.rope.bound.weighted import head_reach, weighted_sums
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Plain
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec

RANDOM = np.random.default_rng(16)


def test_weights_by_hand() -> None:
    """Four dimensions: the queries' pairs (0, 2) and (1, 3) vary by 10 and 20, the keys' by 40 and 5."""
    queries, keys = np.array([[1.0, 4, 9, 16]]), np.array([[30.0, 2, 10, 3]])
    found = pair_weights(queries, keys, 4)
    np.testing.assert_allclose(found.rotated, [[2 * 20 / 30, 2 * 10 / 30]])  # sqrt(10 40) = 20, sqrt(20 5) = 10
    np.testing.assert_allclose(found.unrotated, [0])
    interleaved = pair_weights(queries, keys, 4, "interleaved")
    weights = [math.sqrt(5 * 32), math.sqrt(25 * 13)]
    np.testing.assert_allclose(interleaved.rotated, [[2 * one / sum(weights) for one in weights]])
    partial = pair_weights(queries, keys, 2)
    weights = [math.sqrt(5 * 32), math.sqrt(90) + math.sqrt(48)]
    np.testing.assert_allclose(partial.rotated, [[2 * weights[0] / sum(weights)]])
    np.testing.assert_allclose(partial.unrotated, [2 * weights[1] / sum(weights)])


@pytest.mark.parametrize("scale", [1.0, 0.1])
@pytest.mark.parametrize("pairs", [1, 64])
def test_sums_that_float32_cannot_tell_from_zero_are_decided_in_float64(pairs: int, scale: float) -> None:
    """What does not rotate is a billionth more, or less, than the cosine takes away; a head without weight has none."""
    for theta in np.linspace(1.7, 4.5, 40):
        rotated = np.array([np.full(pairs, scale / pairs)] * 2 + [np.zeros(pairs)])
        off = -scale * math.cos(theta) + scale * np.array([1e-9, -1e-9])
        found = head_reach(np.full(pairs, theta), PairWeights(rotated, np.append(off, 0.0)), 2)
        assert (found.first_violation.tolist(), found.count.tolist(), found.violating) == ([0, 1, 0], [0, 1, 0], 1)


def test_consecutive_heads_share_a_key() -> None:
    queries = RANDOM.uniform(1, 9, (4, 6))
    keys = RANDOM.uniform(1, 9, (2, 6))
    grouped = pair_weights(queries, keys, 6)
    alone = [pair_weights(queries[[head]], keys[[head // 2]], 6).rotated[0] for head in range(4)]
    np.testing.assert_allclose(grouped.rotated, alone)
    other = pair_weights(queries[[1]], keys[[1]], 6).rotated[0]
    assert np.abs(other - grouped.rotated[1]).max() > 0.01


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(128, 128), (96, 72), (64, 64), (128, 32)])
@pytest.mark.parametrize("method", ["none", "linear", "yarn", "mixed"])
def test_equal_variances_give_the_effective_length(head_dim: int, rotary_dim: int, method: str) -> None:
    spec = RopeSpec(head_dim, rotary_dim, Plain(1e4), 4096, 4096)
    recipe = None if method == "none" else Recipe(REGISTRY[method](8.0), attention_factor=1.0)
    schedule = spec.current() if recipe is None else recipe.schedule(spec)
    equal = pair_weights(np.full((4, head_dim), 3.7), np.full((2, head_dim), 0.2), rotary_dim)
    np.testing.assert_allclose(equal.rotated, 1, rtol=1e-14)
    np.testing.assert_allclose(equal.unrotated, spec.unrotated, rtol=1e-14)
    expected = reach(schedule.inv_freq, spec.unrotated, 100_000)
    found = head_reach(schedule.inv_freq, equal.times(schedule.attention_factor), 100_000)
    inside = expected.first_violation if expected.count else None
    assert [length and length + 1 for length in found.effective_lengths] == [inside] * 4
    assert found.count.tolist() == [expected.count] * 4


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 6), st.integers(2, 3000))
def test_term_by_term(seed: int, pairs: int, heads: int, length: int) -> None:
    random = np.random.default_rng(seed)
    inv_freq = random.uniform(1e-5, 3, pairs)
    weights = PairWeights(random.exponential(1, (heads, pairs)), random.exponential(0.3, heads))
    cosines = np.cos(np.outer(inv_freq, np.arange(1, length)))
    naive = (weights.rotated[:, :, None] * cosines).sum(axis=1) + weights.unrotated[:, None]
    found = head_reach(inv_freq, weights, length)
    assert found.count.tolist() == (naive < 0).sum(axis=1).tolist()
    assert found.first_violation.tolist() == [int(row.argmax()) + 1 if row.any() else 0 for row in naive < 0]


def rotated(vectors: np.ndarray, inv_freq: np.ndarray, distance: int) -> np.ndarray:
    """Vectors [n, d] with pairs (i, i + r/2) turned by distance x inv_freq; the dimensions behind them stay."""
    half = len(inv_freq)
    turned = (vectors[:, :half] + 1j * vectors[:, half : 2 * half]) * np.exp(1j * distance * inv_freq)
    return np.concatenate([turned.real, turned.imag, vectors[:, 2 * half :]], axis=1)


def test_the_gap_of_samples_with_means_and_covariances() -> None:
    """E q^T R_m k' - E q^T R_m k over samples, where k' is the query's deviation in the scale of the keys."""
    inv_freq, samples = np.array([0.9, 0.31, 0.05]), 400_000
    shapes, means = RANDOM.normal(size=(2, 8, 8)) * [4, 1, 1, 4, 1, 1, 1, 1], RANDOM.normal(size=(2, 8))
    queries, keys = (RANDOM.normal(size=(samples, 8)) @ shapes[one] + means[one] for one in (0, 1))
    variances = [np.square(shape).sum(axis=0) for shape in shapes]
    pair = [np.concatenate([np.tile(v[:3] + v[3:6], 2), v[6:]]) for v in variances]
    like = (queries - means[0]) * np.sqrt(pair[1] / pair[0]) + means[1]
    weights = pair_weights(variances[0][None], variances[1][None], 6)
    at_zero = weights.rotated.sum() + weights.unrotated.sum()
    gaps = [(queries * rotated(like - keys, inv_freq, distance)).sum(axis=1).mean() for distance in (0, 1, 2, 5, 9, 30)]
    distances = np.array([0, 1, 2, 5, 9, 30])
    expected = weighted_sums(inv_freq, weights, np.zeros(6, int), distances) / at_zero
    np.testing.assert_allclose(np.array(gaps) / gaps[0], expected, atol=0.02)
    equal = np.cos(np.outer(distances, inv_freq)).sum(axis=1) / 4 + 0.25
    assert np.abs(equal - expected).max() > 0.1


def test_variances_behind_a_norm_are_those_of_samples() -> None:
    """Also behind a head of zeros; a constant divisor would give something else."""
    spread, mean = np.array([[0.0] * 5, [9.0, 1, 0.25, 0, 2]]), np.array([[0.0] * 5, [0.0, 2, -1, 0.5, 0]])
    samples = RANDOM.normal(size=(400_000, 5)) * np.sqrt(spread[1]) + mean[1]
    divided = samples / np.sqrt(np.square(samples).mean(axis=1, keepdims=True))
    found = normalised_variances(spread, mean)
    np.testing.assert_allclose(found[1], divided.var(axis=0), atol=0.01)
    assert not found[0].any()
    constant = 5 * spread[1] / (spread[1] + mean[1] ** 2).sum()
    assert np.abs(constant - divided.var(axis=0)).max() > 0.3
    np.testing.assert_allclose(normalised_variances(np.full((1, 7), 4.0), np.zeros((1, 7))), 1, rtol=1e-9)
    one = normalised_variances(np.array([[3.0, 0, 0]]), np.zeros((1, 3)))
    np.testing.assert_allclose(one, [[3, 0, 0]], atol=1e-9)


@pytest.mark.parametrize(
    ("theta", "rotated", "unrotated", "attention_factor", "length"),
    [
        (1.0, 1.2, 0.8, 1.0, 2),  # 1.2 cos m + 0.8 is negative from m = 3 on
        (1.0, 1.2, 0.8, 1.5, 1),  # 1.5^2 1.2 cos m + 0.8 from m = 2 on
        (1.0, 0.0, 0.0, 1.0, None),  # a head without variance
        (math.pi, 1.5, 0.5, 1.0, 0),
        (math.pi, 0.5, 1.5, 1.0, None),  # negative at every odd distance, and nowhere
        (math.pi / 3, 1.5, 0.5, 1.0, 1),  # cos of 60 m degrees is below -1/3 at 2, 3 and 4
        (math.pi, 1.0, 1.0, 1.0, None),  # cos of the float64 next to pi is -1: the sum is 0 at every odd distance
    ],
)
def test_the_effective_length_of_one_pair(
    theta: float, rotated: float, unrotated: float, attention_factor: float, length: int | None
) -> None:
    weights = PairWeights(np.array([[rotated]]), np.array([unrotated])).times(attention_factor)
    assert head_reach(np.array([theta]), weights, 5).effective_lengths == [length]


def test_distances_are_looked_at_up_to_two_to_the_27() -> None:
    far = (1 << 27) + 1
    one = PairWeights(np.ones((1, 1)), np.zeros(1))
    for look in (lambda: head_reach(np.ones(1), one, far), lambda: reach(np.ones(1), 0.0, far)):
        with pytest.raises(RecipeError, match="up to 134217728 tokens, and 134217729 is more; choose fewer"):
            look()
