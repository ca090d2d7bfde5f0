"""Rows as users write them are the recipes of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.errors import RopeconvError
from ropeconv.evaluate.row import parse_rows
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe


def recipe(name: str, *values: object, **settings: object) -> Recipe:
    return Recipe(REGISTRY[name](*values, **settings))


def test_methods_with_values_settings_and_modifiers() -> None:
    rows = parse_rows("base, yarn:4, linear:128k,theta:1e6,yarn:4:beta-fast=16:attention_factor=1:context=64k")
    assert [row.name for row in rows][:3] == ["base", "yarn:4", "linear:128k"]
    assert [row.recipe for row in rows] == [
        None,
        recipe("yarn", 4.0),
        recipe("linear", "128k"),
        recipe("theta", 1e6),
        Recipe(REGISTRY["yarn"](4.0, beta_fast=16), attention_factor=1, context=65536),
    ]


def test_a_value_may_hold_a_colon() -> None:
    first, second = parse_rows("dynamic:yarn:4:at=8k,piecewise:8@44:context=32k")
    assert first.recipe == recipe("dynamic", "yarn:4", at=8192)
    assert second.recipe == Recipe(REGISTRY["piecewise"]("8@44"), context=32768)


def test_log_n_and_switches_are_modifiers() -> None:
    (row,) = parse_rows("ntk:4:log_n=clamped:on_top=true")
    assert row.recipe == Recipe(REGISTRY["ntk"](4.0), log_n="clamped", on_top=True)


def test_a_saved_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(recipe("mixed", 8.0).to_dict()))
    (row,) = parse_rows(f"recipe:{path}")
    assert row.recipe == recipe("mixed", 8.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no method"), ("base,base", "base twice"), ("base:2", "write base"), ("yern:4", "names no method"),
        ("yarn", "write it like yarn:4"), ("yarn:4:8", "needs one value"), ("yarn:x", "128k"),
        ("yarn:4:factor=8", "gives factor twice"), ("yarn:4:beta_fast=1:beta_fast=2", "a setting twice"),
        ("as-is:3", "write as-is"),
        ("yarn:4:gamma=1", "setting gamma, which yarn does not take; it takes beta_fast, "),
        ("dynamic:yarn:4", "as in dynamic:yarn:4:at=32k"), ("dynamic:4:at=8k", "METHOD one of"),
        ("yarn:4:beta_fast=a+b", "write a number"),
        ("theta:big", "takes a number"),
        ("yarn:0.5", "at least 1"), ("longrope:f.json", "names no method"), ("recipe:/nowhere.json", "cannot be read"),
        ("yarn:4:log_n=sometimes", "clamped or full"), ("linear:2:context=0", "not a number of tokens"),
    ],
)  # fmt: skip
def test_what_is_no_row_is_refused_with_a_repair(text: str, words: str) -> None:
    with pytest.raises(RopeconvError, match=words):
        parse_rows(text)
