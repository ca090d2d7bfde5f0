"""Divisors over the powers of a base, and lengths from which a class derives an attention factor, against numpy."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from ropeconv.convert.encoding import original_for
from ropeconv.convert.encodings.factors import factor_list
from ropeconv.errors import UnsupportedBake


def ulps(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.abs(found.view(np.int32).astype(np.int64) - wanted.astype(np.float32).view(np.int32))


def test_divisors_hold_for_both_roundings_of_a_power_that_is_near_the_middle() -> None:
    """Where a runtime may round theta^x to either of two floats; elsewhere most are met exactly."""
    exact_hits, both = list[np.ndarray](), list[np.ndarray]()
    for theta, seed in product((1e4, 123456.0, 5e5, 1e6, 8e6), range(4)):
        exponent = (np.arange(0, 256, 2).astype(np.float32) / np.float32(256)).astype(np.float64)
        exact = np.float64(np.float32(theta)) ** exponent
        wanted = 1 / exact / np.random.default_rng(seed).uniform(1, 40, 128)
        power = exact.astype(np.float32)
        other = np.nextafter(power, np.where(exact > power, np.float32(np.inf), np.float32(0)))
        doubtful = np.abs(exact - power) > 0.4 * np.abs(other.astype(np.float64) - power)
        found = factor_list(wanted, theta, 256)
        ulp, other_ulp = (ulps(np.float32(1) / (found * one), wanted) for one in (power, other))
        exact_hits.append(ulp[~doubtful] == 0)
        both.append(np.maximum(ulp, other_ulp)[doubtful])
    assert np.concatenate(exact_hits).mean() > 0.75
    assert np.concatenate(both).max() <= 2


def test_lengths_from_which_an_attention_factor_follows() -> None:
    for context, factor in ((131072, 1.19), (4096, 1.1), (1 << 20, 1.3)):
        longer, original, (note,) = original_for(context, factor)
        assert f"declares {longer} tokens (for {context}) and an original length of {original}" in note
        assert math.sqrt(1 + math.log(longer / original) / math.log(original)) == pytest.approx(factor, abs=1e-6)
        assert context <= longer < context + 4096
        errors = {
            m: abs(math.sqrt(math.log(m) / math.log(round(m ** (1 / factor**2)))) - factor)
            for m in range(context, longer + 1)
        }
        assert min(errors, key=lambda m: errors[m]) == longer  # no shorter one is as near
    assert original_for(4096, 1.0) == original_for(4096, 1 + 1e-8) == (4096, 4096, ())
    assert original_for(16, 2.0)[:2] == original_for(4, 2.0)[:2] == (16, 2)
    assert original_for(10546, 2.0)[:2] == (14641, 11)  # 4095 tokens more than wanted, and no further
    with pytest.raises(UnsupportedBake, match="no pair of lengths gives it"):
        original_for(10545, 2.0)
    for impossible in (0.9, 30.0):
        with pytest.raises(UnsupportedBake, match="no pair of lengths gives it"):
            original_for(4096, impossible)
