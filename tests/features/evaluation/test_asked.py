"""What users write: lengths, sizes, times, measures, rows, and conditions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv import METHODS, Recipe, RopeconvError, UsageError
from ropeconv.features.evaluation.cases import EvaluationSizes, parse_lengths
from ropeconv.features.evaluation.evaluation import parse_duration, parse_measures
from ropeconv.features.evaluation.ranking import Condition, parse_condition
from ropeconv.features.evaluation.result import Cell, Result
from ropeconv.verbs.rows import parse_rows

from .results import LENGTHS, ROWS, TRAINED, made


def in_4096(text: str) -> tuple[int, ...]:
    return parse_lengths(text, 4096)


def recipe(name: str, *values: object, **settings: object) -> Recipe:
    return Recipe(METHODS[name](*values, **settings))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8k, 32k", (8192, 32768)),
        ("2T,8k,1T", (4096, 8192)),
        ("1.5T", (6144,)),
        ("3/4T", (3072,)),
    ],
)
def test_lengths_are_sorted_and_each_once(text: str, lengths: tuple[int, ...]) -> None:
    assert in_4096(text) == lengths


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"windows": 0}, "--windows is 0"), ({"seed": 1 << 31}, "give a number from 0")],
)
def test_sizes_out_of_range_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(RopeconvError, match=message):
        EvaluationSizes((64,), 64, **sizes)


def test_times_are_parsed() -> None:
    assert [parse_duration(text) for text in ("90s", "20m", "1.5h")] == [90, 1200, 5400]


def test_rows_are_methods_with_values_settings_and_modifiers() -> None:
    rows = parse_rows(
        "base, yarn:4, linear:128k,theta:1e6,yarn:4:beta-fast=16:attention_factor=1:context=64k"
    )
    assert [row.name for row in rows][:3] == ["base", "yarn:4", "linear:128k"]
    assert [row.recipe for row in rows] == [
        None,
        recipe("yarn", 4.0),
        recipe("linear", "128k"),
        recipe("theta", 1e6),
        Recipe(METHODS["yarn"](4.0, beta_fast=16), attention_factor=1, context=65536),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dynamic:yarn:4:at=8k", recipe("dynamic", "yarn:4", at=8192)),  # a value with a colon
        (
            "ntk:4:log_n=clamped:on_top=true",
            Recipe(METHODS["ntk"](4.0), log_n="clamped", on_top=True),
        ),
    ],
)
def test_a_row_is_the_recipe_of_the_command_line_or_a_saved_one(
    text: str, expected: Recipe, tmp_path: Path
) -> None:
    assert parse_rows(text)[0].recipe == expected
    (tmp_path / "mine.json").write_text(json.dumps(expected.to_dict()))
    assert parse_rows(f"recipe:{tmp_path / 'mine.json'}")[0].recipe == expected


REFUSED = {
    in_4096: dict.fromkeys(("", "0T", "1/0T", "xT", "-1T", "8q"), ""),
    parse_duration: dict.fromkeys(
        ("", "20", "0m", "-3m", "20 minutes"), "write it like 90s, 20m or 2h"
    ),
    parse_measures: {
        "grow": "choose growth, longppl, niah, ",
        "growth,growth": "twice",
        "growth:3": "only sliding",
        "sliding:0": "only sliding",
    },
    parse_rows: {
        "": "no method",
        "base,base": "base twice",
        "base:2": "write base",
        "yern:4": "is not a method",
        "yarn": "write it like yarn:4",
        "yarn:4:8": "needs one value",
        "yarn:x": "128k",
        "yarn:4:factor=8": "gives factor twice",
        "yarn:4:beta_fast=1:beta_fast=2": "a setting twice",
        "yarn:4:gamma=1": "setting gamma, which yarn does not have; it has beta_fast, ",
        "dynamic:yarn:4": "as in dynamic:yarn:4:at=32k",
        "dynamic:4:at=8k": "METHOD one of",
        "theta:big": "needs a number",
        "yarn:0.5": "at least 1",
        "recipe:/nowhere.json": "cannot be read",
        "yarn:4:log_n=sometimes": "clamped or full",
    },
}
"""By the function that parses it, texts that are refused and what is said."""


@pytest.mark.parametrize(
    ("parse", "text", "hint"),
    [(parse, text, hint) for parse, texts in REFUSED.items() for text, hint in texts.items()],
)
def test_another_text_is_refused_with_a_repair(
    parse: Callable[[str], object], text: str, hint: str
) -> None:
    with pytest.raises(
        UsageError if parse in (parse_duration, parse_measures) else RopeconvError,
        match=hint or None,
    ):
        parse(text)


# --fail-if: what is a condition, and when it is true


def parsed(text: str) -> Condition:
    condition = parse_condition(text)
    condition.check(list(ROWS), ["growth", "position"], EvaluationSizes(LENGTHS, TRAINED))
    return condition


def with_cells(*cells: tuple[str, dict[str, float | None]]) -> Result:
    """A result with growth of rows at 2T, by name and what differs from the first."""
    same = {
        "measure": "growth",
        "metric": "loss",
        "column": 2 * TRAINED,
        "windows": 8,
        "documents": 8,
        "clusters": 8,
    }
    measurements = [
        Cell(row=name, **same | {"value": 3.0, "error": 0.1} | values) for name, values in cells
    ]
    return msgspec.structs.replace(made("base", ["growth"]), cells=measurements)


def differing(row: str, difference: float) -> tuple[str, dict[str, float | None]]:
    return row, {"difference": difference, "difference_error": 0.1, "margin": 0.453}


BASE: tuple[str, dict[str, float | None]] = ("base", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yarn:4 > base @2T", ("growth", "yarn:4", True, "base", 2 * TRAINED)),
        ("yarn:4<base@1/4T", ("growth", "yarn:4", False, "base", TRAINED // 4)),
        (" yarn:4 > 3.5 @32k ", ("growth", "yarn:4", True, 3.5, 4 * TRAINED)),
        ("position yarn:4 > base @10k", ("position", "yarn:4", True, "base", 10240)),
        (
            "lm-eval:arc_easy yarn:4 < base @1T",
            ("lm-eval:arc_easy", "yarn:4", False, "base", TRAINED),
        ),
    ],
)
def test_conditions_are_read(text: str, expected: tuple[object, ...]) -> None:
    condition = parse_condition(text)
    assert (
        condition.measure,
        condition.left,
        condition.above,
        condition.right,
        condition.column(TRAINED),
    ) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "not a condition")
            for text in (
                "yarn:4 > base",
                "yarn:4 >= base @2T",
                "> base @2T",
            )
        ),
        ("yarn:4 > bse @2T", "'bse'"),
        ("4 > base @2T", "'4'"),
        ("yarn:4 > nan @2T", "'nan'"),
        ("sliding yarn:4 > base @2T", "needs sliding; add it"),
        ("yarn:4 > base @3T", "needs 24,576 tokens; add"),
        ("yarn:4 > base @twoT", "is not a length"),
        ("yarn:4 > base @1T,2T", "several lengths"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
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
        (
            "yarn:4 > linear:4 @2T",
            [BASE, differing("yarn:4", 0.0), differing("linear:4", -0.92)],
            True,
        ),
        (
            "yarn:4 > linear:4 @2T",
            [BASE, differing("yarn:4", 0.0), differing("linear:4", -0.89)],
            False,
        ),
    ],
)
def test_it_is_true_beyond_the_margin(
    text: str, cells: list[tuple[str, dict[str, float]]], met: bool
) -> None:
    assert parsed(text).judge(with_cells(*cells))[0] == met


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ntk:4 > base @2T", "ntk:4 has no growth at 16,384 tokens"),
        ("position base < 0.9 @2T", "no position"),
        ("yarn:4 > base @2T", "needs at least 4 windows"),
    ],
)
def test_what_was_not_measured_cannot_be_judged(text: str, message: str) -> None:
    with pytest.raises(RopeconvError, match=message):
        parsed(text).judge(with_cells(BASE, ("yarn:4", {"difference": 1.0, "clusters": 3})))
