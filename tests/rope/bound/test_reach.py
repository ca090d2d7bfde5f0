"""How far schedules reach, and the bound on scores: published figures, sums term by term, and numbers by hand."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeconv.rope.bound import first_violation, reach, violations
from ropeconv.rope.bound.decay import score_bound
from ropeconv.rope.bound.reach import margins
from ropeconv.rope.bound.sums import exact_value
from ropeconv.rope.forms import Plain, base_inv_freq
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec

from .naive import sums

# first violation; L = 4096, b = 1e4, s = 8, and L = 8192, b = 5e5, s = 16
EXTENDED = {
    "linear": (13649, 295005), "ntk-old": (6505, 61936), "ntk": (5732, 102996), "ntk-fixed": (6719, 64679),
    "mixed": (5687, 122111), "by-parts": (9767, 165156), "yarn": (8886, 199047),
}  # fmt: skip


@pytest.mark.parametrize("method", EXTENDED)
def test_first_violations_of_schedules(method: str) -> None:
    for base, length, factor, first in zip((1e4, 5e5), (4096, 8192), (8.0, 16.0), EXTENDED[method], strict=True):
        spec = RopeSpec(128, 128, Plain(base), length, length)
        found = Recipe(REGISTRY[method](factor)).schedule(spec)
        assert first_violation(found.inv_freq, 0, 1 << 20) == first


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1e-6, 3.2), min_size=1, max_size=70), st.floats(0, 8), st.integers(1, 3000))
def test_any_vector_term_by_term(vector: list[float], unrotated: float, length: int) -> None:
    inv_freq = np.array(vector)
    plain = sums(inv_freq, unrotated, 1, length) if length > 1 else np.empty(0)
    clear = np.abs(plain) > 1e-9
    found = np.concatenate([np.empty(0, dtype=int), *violations(inv_freq, unrotated, length)])
    marked = np.zeros(max(0, length - 1), dtype=bool)
    marked[found - 1] = True
    assert (marked == (plain < 0))[clear].all()


@pytest.mark.parametrize(
    ("inv_freq", "length"),
    [(base_inv_freq(1e4, 128), 4096), (base_inv_freq(1e4, 128), 60000), (np.array([1e-4, 1e-4]), 70000)],
)
def test_runs_of_neighbours(inv_freq: np.ndarray, length: int) -> None:
    """The last one's runs are longer than the chunks in which they are found."""
    found = reach(inv_freq, 0, length)
    plain = 1 + np.flatnonzero(sums(inv_freq, 0, 1, length) < 0)
    splits = np.flatnonzero(np.diff(plain) > 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(plain, splits)]
    assert (found.count, found.runs) == (len(plain), len(runs))
    assert list(found.places) == runs[:100]


@pytest.mark.parametrize(
    ("turn", "places"),
    [(1.0, ((2, 4), (8, 10))), (2.0, ((1, 2), (4, 5), (8, 8))), (2.5, ((1, 1), (4, 4), (6, 6), (9, 9)))],
)
def test_runs_of_one_pair_by_hand(turn: float, places: tuple[tuple[int, int], ...]) -> None:
    """cos(turn m) is negative from a quarter to three quarters of a turn of 6.28 radians."""
    length = 11 if turn == 1.0 else 10
    found = reach(np.array([turn]), 0.0, length)
    assert (found.places, found.runs, found.first_violation) == (places, len(places), places[0][0])
    assert found.count == sum(last - first + 1 for first, last in places)
    assert (found.length, found.searched, found.automatic) == (length, length, False)


def test_zero_is_decided_exactly() -> None:
    """At the float64 next to pi, 1 + cos is 7e-33, so B(1) = 1 + 2 cos(pi) + cos(x) is above 0 for x = 1e-20 only."""
    assert first_violation(np.array([np.pi, np.pi, 1e-20]), 1.0, 100) is None
    assert first_violation(np.array([np.pi, np.pi, 1e-9]), 1.0, 100) == 1


def test_exact_values_at_a_hundred_million() -> None:
    inv_freq = base_inv_freq(5e5, 64)
    with mpmath.workdps(50):
        wanted = mpmath.fsum(mpmath.cos(10**8 * mpmath.mpf(float(value))) for value in inv_freq) + 3
        assert abs(mpmath.mpf(str(exact_value(inv_freq, 3.0, 10**8))) - wanted) < mpmath.mpf("1e-38")


def test_partial_rotation() -> None:
    assert first_violation(base_inv_freq(1e4, 96), 16, 1 << 20) == 18607
    found = reach(base_inv_freq(10.0, 32), 16, 10**6)
    assert found.automatic
    assert found.effective_length is None


def test_margins_are_the_lowest_of_their_stretches() -> None:
    inv_freq = base_inv_freq(1e4, 64)
    at, lowest = margins(inv_freq, 2.0, 5000, 300)
    plain = sums(inv_freq, 2.0, 1, 5000)
    np.testing.assert_allclose(lowest, plain[at.astype(int) - 1], atol=1e-4)
    assert lowest.min() == pytest.approx(plain.min(), abs=1e-4)
    assert at[0] == 1, "the first interval holds the distance 1 alone"
    assert (np.diff(at) > 0).all()


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
