"""Price inside the trained context, and the length to which a row holds."""

from __future__ import annotations

import numpy as np
import pytest

from ropeconv.evaluate.case import Observation

from .observed import observed, summary

TEXT = np.random.default_rng(8).normal(3, 0.8, 12)
"""How hard the targets of each window are."""


def curve(losses: dict[int, float], noise: float = 0.01, measure: str = "growth") -> list[Observation]:
    """losses: by length, what is added to the difficulty of each window."""
    random = np.random.default_rng(11)
    found = []
    for length, loss in losses.items():
        found += observed(TEXT + loss + random.normal(0, noise, len(TEXT)), length, measure)
    return found


def held(losses: dict[int, float], **settings: object) -> int | None:
    return summary({"base": curve(losses, **settings)}).rows[0].holds_to


def test_a_row_holds_to_the_last_length_that_is_not_worse_than_its_best() -> None:
    assert held({256: 0.5, 1024: 0.1, 2048: 0.0, 4096: 0.004, 8192: 2.0}) == 4096
    assert held({256: 0.5, 1024: 0.1, 2048: 0.0, 4096: 0.1}) == 2048
    assert held({256: 0.5, 1024: 0.1, 2048: 0.0}) == 2048


def test_lengths_are_paired_by_window() -> None:
    """The loss grows by a twentieth of the spread of windows, which unpaired errors would not see."""
    losses = {1024: 0.0, 2048: 0.04}
    assert held(losses) == 1024
    found = curve(losses)
    shuffled = observed(np.random.default_rng(1).permutation([one.value for one in found if one.column == 2048]), 2048)
    assert summary({"base": [one for one in found if one.column == 1024] + shuffled}).rows[0].holds_to == 2048


def test_a_length_that_fails_ends_it() -> None:
    assert held({1024: 0.0, 2048: 1.0, 4096: 0.1}, noise=0.1) == 1024
    assert held({1024: 0.0, 4096: 0.1}, noise=0.1) == 4096, "by itself it would not be worse"


def test_it_is_not_known_without_growth_or_with_a_single_window() -> None:
    assert held({1024: 0.0, 2048: 0.0}, measure="position") is None
    assert summary({"base": observed([1.0]) + observed([2.0], 2048)}).rows[0].holds_to is None


def test_the_price_is_the_difference_at_the_trained_length() -> None:
    rows = {"base": curve({1024: 0.0, 2048: 1.0}), "yarn:4": curve({1024: 0.125, 2048: 0.5})}
    base, yarn = summary(rows, trained=1024).rows
    assert (base.price, base.price_error) == (None, None)
    assert yarn.price == pytest.approx(0.125)
    assert summary(rows, trained=2048).rows[1].price == pytest.approx(-0.5)
    assert summary(rows, trained=512).rows[1].price is None


def test_other_measures_have_no_price() -> None:
    rows = {name: curve({1024: 0.0}, measure="position") for name in ("base", "yarn:4")}
    assert summary(rows).rows[1].price is None
