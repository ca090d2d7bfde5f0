"""The search for violations among long distances: what it finds violates, and it ends at the answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ropeconv.rope.bound.smallest import Sweep
from ropeconv.rope.bound.sums import Sums, float64_error

from .naive import sums
from .test_smallest import CERTIFIED


def values(distances: np.ndarray, base: float, rotary_dim: int) -> np.ndarray:
    inv_freq = base ** (-2.0 * np.arange(rotary_dim // 2) / rotary_dim)
    return np.concatenate([sums(inv_freq, 0.0, int(one), int(one) + 1) for one in distances])


@pytest.mark.parametrize(
    ("length", "share", "group"), [(1 << 17, 1 - 1e-5, 0), (1 << 17, 0.7, 0), (1 << 21, 1 - 1e-5, 1)]
)
def test_slow_pairs_lead_to_distances_that_violate(length: int, share: float, group: int) -> None:
    """2^21 tokens are two groups of 4,096 blocks, and only the second has distances that violate near the answer."""
    base, binding = CERTIFIED[length]
    sweep, log_base = Sweep(Sums(128), length), math.log(base * share)
    assert not len(sweep._of_pool(sweep.sums.inv_freq(log_base)))
    assert sweep._search_slow(sweep.sums.inv_freq(log_base))
    assert sweep.pool.max() < length
    found = sweep.witnesses(log_base)
    assert len(found) > 0
    assert (values(found, base * share, 128) < 0).all()
    if share > 0.99:
        assert binding in found
        assert sweep.group == group


@pytest.mark.parametrize("length", [1 << 14, 1 << 17])
def test_the_search_ends_where_the_answer_is(length: int) -> None:
    base, _ = CERTIFIED[length]
    reported: list[float] = []
    proof: list[tuple[float, float, int]] = []
    sweep = Sweep(Sums(128), length, proof, reported.append)
    end = sweep.feasible_from(math.log(base * (1 - 1e-3)))
    assert math.exp(end) == pytest.approx(base, rel=1e-10)
    assert reported == [upto for _, upto, _ in proof]
    assert reported == sorted(reported)
    assert reported[-1] == end
    assert not len(sweep.witnesses(math.log(base * (1 + 1e-9))))
    assert sweep.feasible_from(end + 1e-9) == end + 1e-9


def test_short_lengths_need_no_groups() -> None:
    inv_freq = Sums(128).inv_freq(math.log(1e4))
    assert not Sweep(Sums(128), 65535)._search_slow(inv_freq)
    assert Sweep(Sums(128), 65536)._search_slow(inv_freq)
    assert not Sweep(Sums(128), 65536)._search_slow(Sums(128).inv_freq(0.0))


def test_distances_of_the_last_block_that_are_not_below_the_length_are_left_out() -> None:
    """A cosine that turns half over 65,536 tokens is lowest there, at the last distance of the last block."""
    sweep = Sweep(Sums(8), 1 << 16)
    assert sweep._search_slow(np.full(4, math.pi / (1 << 16)))
    assert sweep.pool.max() == (1 << 16) - 1


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (511, 511), (512, 512), (513, 512), (2000, 512)])
def test_of_the_distances_that_may_violate_the_lowest_are_kept(count: int, kept: int) -> None:
    sweep = Sweep(Sums(8), 100)
    sweep._keep(np.arange(1, count + 1), np.arange(count, 0.0, -1))
    assert sorted(sweep.pool) == list(range(count - kept + 1, count + 1))


def test_a_search_knows_the_error_of_its_sums() -> None:
    assert Sweep(Sums(64), 5000).error == float64_error(32, 5000)
    assert Sweep(Sums(64), 5000).pool.tolist() == list(range(1, 512))
    assert Sweep(Sums(64), 5).pool.tolist() == [1, 2, 3, 4]
