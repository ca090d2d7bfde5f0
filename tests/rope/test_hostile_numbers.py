"""Numbers that no method can take, and arithmetic that leaves the range of floats: always a RecipeError."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ropeconv.rope.errors import RecipeError, shown
from ropeconv.rope.forms import Plain
from ropeconv.rope.lengths import MOST_TOKENS, is_length, parse_factor, parse_tokens
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.methods.method import positive
from ropeconv.rope.recipe import MODIFIERS, Recipe
from ropeconv.rope.spec import RopeSpec

from ..faults.inputs.kinds.recipe import SEEDS

INFINITE = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 10**400, -(10**400), 1e31)
OTHER = (
    5e-324,
    0,
    -1,
    -0.5,
    1e29,
    1e-29,
    1.0000001,
    999_999,
    2**31 - 1,
    True,
    None,
    "",
    "9" * 5000,
    "9" * 5000 + "k",
    [],
    [1],
    {},
)
SPECS = tuple(RopeSpec(width, width, Plain(1e4), length, length) for width in (2, 16, 128) for length in (2, 4096))


def outcome(data: dict[str, Any], spec: RopeSpec) -> str:
    """ "refused" or "taken"; any error but a RecipeError is raised."""
    try:
        schedule = Recipe.from_dict(data).schedule(spec)
    except RecipeError:
        return "refused"
    assert 0 < schedule.context <= MOST_TOKENS
    return "taken"


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY.items() if name != "theta-bound"])
def test_methods_take_or_refuse_every_number(name: str) -> None:
    seed = next((s for s in SEEDS if s.get("method") == name), {"method": name, "parameters": {"factor": 4.0}})
    for item in dataclasses.fields(REGISTRY[name]):
        for value in (*INFINITE, *OTHER):
            made = {"method": name, "parameters": {**seed["parameters"], item.name: value}}
            found = {outcome(made, spec) for spec in SPECS}
            if value in INFINITE or value != value:
                assert found == {"refused"}, (item.name, value)


@pytest.mark.parametrize("name", MODIFIERS)
def test_modifiers_take_or_refuse_every_number(name: str) -> None:
    for value in (*INFINITE, *OTHER):
        made = {"method": "yarn", "parameters": {"factor": 4.0}, "log_n": "full", name: value}
        found = {outcome(made, spec) for spec in SPECS}
        if value in INFINITE or value != value:
            assert found == {"refused"}, value


@pytest.mark.parametrize("name", list(REGISTRY))
def test_numbers_in_the_middle_are_taken(name: str) -> None:
    seed = next((s for s in SEEDS if s.get("method") == name), None) or {"method": name, "parameters": {"factor": 4.0}}
    if name != "theta-bound":
        assert (
            outcome({"method": name, "parameters": seed["parameters"]}, RopeSpec(16, 16, Plain(1e4), 64, 64)) == "taken"
        )


@pytest.mark.parametrize("data", [None, [], 3, {"method": []}, {"method": {}}, {"method": "yarn", "parameters": []}])
def test_recipes_of_another_shape_are_refused(data: object) -> None:
    with pytest.raises(RecipeError):
        Recipe.from_dict(data)


def test_lengths_end_where_runtimes_cannot_count_on() -> None:
    assert parse_tokens("2047M") == 2047 << 20
    assert parse_tokens("0000000000000000128k") == 1 << 17
    for text in ("2048M", "9" * 12 + "M", "9" * 400, "9" * 5000 + "k"):
        with pytest.raises(RecipeError):
            parse_tokens(text)
        with pytest.raises(RecipeError):
            parse_factor(text + "M", "--yarn")
    assert is_length("128k")
    assert not is_length("9" * 5000 + "k")


def test_values_in_messages_are_cut() -> None:
    assert shown("x") == "'x'"
    assert shown(4.5) == "4.5"
    assert (len(shown("x" * 78)), len(shown("x" * 79)), shown("x" * 79)[-1]) == (80, 80, "'")
    assert "..." not in shown("x" * 78)
    assert all(len(shown(value)) < 200 for value in ("x" * 10**6, [0] * 10**6, 10**4000, {"a": "b" * 10**6}))


def test_positive_numbers_have_a_smallest_and_a_largest_one() -> None:
    assert [positive(value) for value in (1e-30, 1, 1e30)] == [None] * 3
    assert [positive(value) for value in (0.99e-30, 1.01e30, -1)] == ["must be a positive number"] * 3
