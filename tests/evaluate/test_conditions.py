"""--fail-if: what is a condition, and when it is true."""

from __future__ import annotations

import msgspec
import pytest

from ropeconv.errors import UsageError
from ropeconv.evaluate.cases import EvaluationSizes
from ropeconv.evaluate.ranking import Condition, parse_condition
from ropeconv.evaluate.result import Cell, Result
from ropeconv.rope.errors import RopeconvError

from .results import LENGTHS, ROWS, TRAINED, made


def parsed(text: str) -> Condition:
    found = parse_condition(text)
    found.check(list(ROWS), ["growth", "position"], EvaluationSizes(LENGTHS, TRAINED))
    return found


def with_cells(*cells: tuple[str, dict[str, float | None]]) -> Result:
    """A result with growth of rows at 2T, by name and what differs from the first."""
    same = {"measure": "growth", "metric": "loss", "column": 2 * TRAINED, "windows": 8, "documents": 8, "clusters": 8}
    found = [Cell(row=name, **same | {"value": 3.0, "error": 0.1} | values) for name, values in cells]
    return msgspec.structs.replace(made("base", ["growth"]), cells=found)


def differing(row: str, difference: float) -> tuple[str, dict[str, float | None]]:
    return row, {"difference": difference, "difference_error": 0.1, "margin": 0.453}


BASE: tuple[str, dict[str, float | None]] = ("base", {})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("yarn:4 > base @2T", ("growth", "yarn:4", True, "base", 2 * TRAINED)),
        ("yarn:4<base@1/4T", ("growth", "yarn:4", False, "base", TRAINED // 4)),
        (" yarn:4 > 3.5 @32k ", ("growth", "yarn:4", True, 3.5, 4 * TRAINED)),
        ("position yarn:4 > base @10k", ("position", "yarn:4", True, "base", 10240)),
        ("lm-eval:arc_easy yarn:4 < base @1T", ("lm-eval:arc_easy", "yarn:4", False, "base", TRAINED)),
    ],
)
def test_conditions_are_read(text: str, wanted: tuple[object, ...]) -> None:
    found = parse_condition(text)
    assert (found.measure, found.left, found.above, found.right, found.column(TRAINED)) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "not a condition") for text in (
            "yarn:4 > base", "yarn:4 >= base @2T", "> base @2T",
        )),
        ("yarn:4 > bse @2T", "'bse'"), ("4 > base @2T", "'4'"), ("yarn:4 > nan @2T", "'nan'"),
        ("sliding yarn:4 > base @2T", "needs sliding; add it"),
        ("yarn:4 > base @3T", "needs 24,576 tokens; add"), ("yarn:4 > base @twoT", "is not a length"),
        ("yarn:4 > base @1T,2T", "several lengths"),
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "cells", "met"),
    [
        # the values of both rows are equal, so only the paired difference decides
        ("yarn:4 > base @2T", [BASE, differing("yarn:4", 0.46)], True),
        ("yarn:4 > base @2T", [BASE, differing("yarn:4", 0.44)], False),
        ("yarn:4 > base @2T", [BASE, differing("yarn:4", -0.46)], False),
        ("yarn:4 < base @2T", [BASE, differing("yarn:4", -0.46)], True),
        ("base > yarn:4 @2T", [BASE, differing("yarn:4", -0.46)], True),
        # a number is compared with the value, at 4.53 errors for eight windows
        ("yarn:4 > 3.5 @2T", [("yarn:4", {"value": 3.94})], False),
        ("yarn:4 > 3.5 @2T", [("yarn:4", {"value": 3.96})], True),
        # rows behind the first have two margins, which are added
        ("yarn:4 > linear:4 @2T", [BASE, differing("yarn:4", 0.0), differing("linear:4", -0.92)], True),
        ("yarn:4 > linear:4 @2T", [BASE, differing("yarn:4", 0.0), differing("linear:4", -0.89)], False),
    ],
)
def test_it_is_true_beyond_the_margin(text: str, cells: list[tuple[str, dict[str, float]]], met: bool) -> None:
    assert parsed(text).judge(with_cells(*cells))[0] == met


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ntk:4 > base @2T", "ntk:4 has no growth at 16,384 tokens"),
        ("position base < 0.9 @2T", "no position"),
        ("yarn:4 > base @2T", "needs at least 4 windows"),
    ],
)
def test_what_was_not_measured_cannot_be_judged(text: str, said: str) -> None:
    with pytest.raises(RopeconvError, match=said):
        parsed(text).judge(with_cells(BASE, ("yarn:4", {"difference": 1.0, "clusters": 3})))
