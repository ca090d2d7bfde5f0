"""What users write: lengths, sizes, times, measures and rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv import METHODS, Recipe, RopeconvError, UsageError
from ropeconv.evaluate.cases import EvaluationSizes, parse_lengths
from ropeconv.evaluate.evaluation import parse_duration, parse_measures
from ropeconv.evaluate.row import parse_rows


def in_4096(text: str) -> tuple[int, ...]:
    return parse_lengths(text, 4096)


def recipe(name: str, *values: object, **settings: object) -> Recipe:
    return Recipe(METHODS[name](*values, **settings))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8k, 32k", (8192, 32768)), ("2T,8k,1T", (4096, 8192)), ("1.5T", (6144,)), ("3/4T", (3072,)),
    ],
)  # fmt: skip
def test_lengths_are_sorted_and_each_once(text: str, lengths: tuple[int, ...]) -> None:
    assert in_4096(text) == lengths


@pytest.mark.parametrize(
    ("sizes", "said"),
    [({"windows": 0}, "--windows is 0"), ({"seed": 1 << 31}, "give a number from 0")],
)
def test_sizes_out_of_range_are_refused(sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(RopeconvError, match=said):
        EvaluationSizes((64,), 64, **sizes)


def test_times_are_parsed() -> None:
    assert [parse_duration(text) for text in ("90s", "20m", "1.5h")] == [90, 1200, 5400]


def test_rows_are_methods_with_values_settings_and_modifiers() -> None:
    rows = parse_rows("base, yarn:4, linear:128k,theta:1e6,yarn:4:beta-fast=16:attention_factor=1:context=64k")
    assert [row.name for row in rows][:3] == ["base", "yarn:4", "linear:128k"]
    assert [row.recipe for row in rows] == [
        None, recipe("yarn", 4.0), recipe("linear", "128k"), recipe("theta", 1e6),
        Recipe(METHODS["yarn"](4.0, beta_fast=16), attention_factor=1, context=65536),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("dynamic:yarn:4:at=8k", recipe("dynamic", "yarn:4", at=8192)),  # a value with a colon
        ("ntk:4:log_n=clamped:on_top=true", Recipe(METHODS["ntk"](4.0), log_n="clamped", on_top=True)),
    ],
)
def test_a_row_is_the_recipe_of_the_command_line_or_a_saved_one(text: str, wanted: Recipe, tmp_path: Path) -> None:
    assert parse_rows(text)[0].recipe == wanted
    (tmp_path / "mine.json").write_text(json.dumps(wanted.to_dict()))
    assert parse_rows(f"recipe:{tmp_path / 'mine.json'}")[0].recipe == wanted


REFUSED = {
    in_4096: dict.fromkeys(("", "0T", "1/0T", "xT", "-1T", "8q"), ""),
    parse_duration: dict.fromkeys(("", "20", "0m", "-3m", "20 minutes"), "write it like 90s, 20m or 2h"),
    parse_measures: {
        "grow": "choose growth, longppl, niah, ", "growth,growth": "twice", "growth:3": "only sliding",
        "sliding:0": "only sliding",
    },
    parse_rows: {
        "": "no method", "base,base": "base twice", "base:2": "write base", "yern:4": "is not a method",
        "yarn": "write it like yarn:4", "yarn:4:8": "needs one value", "yarn:x": "128k",
        "yarn:4:factor=8": "gives factor twice", "yarn:4:beta_fast=1:beta_fast=2": "a setting twice",
        "yarn:4:gamma=1": "setting gamma, which yarn does not have; it has beta_fast, ",
        "dynamic:yarn:4": "as in dynamic:yarn:4:at=32k", "dynamic:4:at=8k": "METHOD one of",
        "theta:big": "needs a number", "yarn:0.5": "at least 1", "recipe:/nowhere.json": "cannot be read",
        "yarn:4:log_n=sometimes": "clamped or full",
    },
}  # fmt: skip
"""By the function that parses it, texts that are refused and what is said."""


@pytest.mark.parametrize(
    ("parse", "text", "said"), [(parse, text, said) for parse, texts in REFUSED.items() for text, said in texts.items()]
)
def test_another_text_is_refused_with_a_repair(parse: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(UsageError if parse in (parse_duration, parse_measures) else RopeconvError, match=said or None):
        parse(text)
