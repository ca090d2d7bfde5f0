"""The bound on scores: by hand, scores that it has to bound, and how it decays."""

from __future__ import annotations

import math

import numpy as np

from ropeconv.rope.bound.decay import score_bound
from ropeconv.rope.forms import base_inv_freq


def test_by_hand() -> None:
    """Two pairs that turn by 90 and 180 degrees per token: S_1 = i, S_2 = i - 1; then -1 and 0."""
    found = score_bound(np.array([math.pi / 2, math.pi]), np.array([0, 1, 2, 4]))
    np.testing.assert_allclose(found, [1.5, (1 + math.sqrt(2)) / 2, 0.5, 1.5], atol=1e-12)
    reversed_ = score_bound(np.array([math.pi, math.pi / 2]), np.array([2]))
    np.testing.assert_allclose(reversed_, [0.5], atol=1e-12)
    np.testing.assert_allclose(score_bound(base_inv_freq(1e4, 128), np.zeros(1)), [32.5])


def test_it_bounds_scores() -> None:
    """|Re sum h_i exp(j m theta_i)| <= max |h_{i+1} - h_i| sum_n |S_n| for random queries and keys."""
    random, inv_freq, distances = np.random.default_rng(3), base_inv_freq(1e4, 32), np.array([0, 1, 5, 40, 300])
    turned = np.exp(1j * np.outer(distances, inv_freq))
    allowed, last, beyond = 16 * score_bound(inv_freq, distances), np.abs(turned.sum(axis=1)), 0
    for _ in range(300):
        products = random.normal(size=16) + 1j * random.normal(size=16) + random.choice([0, 5])
        scores = np.abs((turned @ products).real)
        largest = np.abs(np.diff(np.append(products, 0))).max()
        assert (scores <= largest * allowed).all()
        beyond += (scores > largest * last).any()
    assert beyond, "|S_n| of all pairs alone would bound them too"


def test_it_decays_with_the_distance() -> None:
    """Less than half of it is left after 100 tokens, and a larger base keeps more."""
    distances = np.arange(1, 2000)
    small, large = (score_bound(base_inv_freq(base, 128), distances) for base in (1e4, 1e6))
    assert small[100:].max() < 32.5 / 2
    assert small[:10].mean() > 1.5 * small[100:110].mean() > 1.5 * 1.2 * small[1000:1100].mean()
    assert (large[50:] > small[50:]).mean() > 0.95
