"""A length in place of a factor: which numbers it means, for every method that has a factor."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Plain
from ropeconv.rope.lengths import factor_over, format_tokens, is_length, parse_factor, parse_tokens
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.methods.scaled import ScaledMethod
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec

SCALED = ["linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn", "llama3"]
LLAMA_3 = RopeSpec(128, 128, Plain(500000.0), 8192, 8192)
LLAMA_2 = RopeSpec(128, 128, Plain(10000.0), 4096, 4096)


def test_every_method_with_a_factor_is_here() -> None:
    assert [name for name, kind in REGISTRY.items() if issubclass(kind, ScaledMethod)] == SCALED


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4.0), ("1.5", 1.5), ("128k", "128k"), ("128K", "128k"), ("1m", "1M"), ("65k", "65k")]
)
def test_a_suffix_makes_it_a_length(text: str, value: float | str) -> None:
    assert parse_factor(text, "--yarn") == value


@pytest.mark.parametrize("text", ["four", "", "k", "0k", "-4k", "4 kB", "128k@44", "1.5k"])
def test_what_is_neither_gets_both_spellings(text: str) -> None:
    with pytest.raises(RecipeError, match="--yarn takes a factor such as 4, or a length such as 128k"):
        parse_factor(text, "--yarn")


@pytest.mark.parametrize(("text", "factor"), [("128k", 16), ("131k", 16), ("100k", 12.5), ("1M", 128), ("12k", 1.5)])
def test_the_factor_is_length_over_trained(text: str, factor: float) -> None:
    assert factor_over(text, 8192, "--yarn") == factor


@pytest.mark.parametrize("name", SCALED)
def test_a_length_gives_the_schedule_of_its_factor(name: str) -> None:
    """128k over 8,192 tokens is 16, over 4,096 it is 32: by hand, and the same recipe for both."""
    recipe = Recipe(REGISTRY[name]("128k"))
    for spec, factor in ((LLAMA_3, 16.0), (LLAMA_2, 32.0)):
        found, same = recipe.schedule(spec), Recipe(REGISTRY[name](factor)).schedule(spec)
        assert found.digest == same.digest
        assert found.context == same.context == 131072
    other = Recipe(REGISTRY[name]("256k")).schedule(LLAMA_3)
    assert not np.allclose(other.inv_freq, recipe.schedule(LLAMA_3).inv_freq)


def test_piecewise_takes_a_length_too() -> None:
    found = Recipe(REGISTRY["piecewise"]("128k@35")).schedule(LLAMA_3)
    assert found.digest == Recipe(REGISTRY["piecewise"]("16@35")).schedule(LLAMA_3).digest
    with pytest.raises(RecipeError, match="or a length as in 128k@44"):
        REGISTRY["piecewise"]("128kB@35")


@pytest.mark.parametrize("name", SCALED)
def test_the_recipe_keeps_the_length(name: str) -> None:
    recipe = Recipe(REGISTRY[name]("128k"))
    saved = json.loads(json.dumps(recipe.to_dict()))
    assert saved["parameters"]["factor"] == "128k"
    assert Recipe.from_dict(saved) == recipe
    assert recipe.method.label == f"{name}128k"
    assert recipe.method.command == f"--{name} 128k"


@pytest.mark.parametrize("text", ["8k", "4k", "1k"])
def test_a_length_within_the_trained_one_is_an_error_with_the_repair(text: str) -> None:
    words = rf"--yarn {text} is within the trained 8,192 tokens; give a longer length, such as --yarn 32k, or a factor"
    with pytest.raises(RecipeError, match=words):
        Recipe(REGISTRY["yarn"](text)).schedule(LLAMA_3)


def test_the_attention_factor_follows_from_the_numeric_factor() -> None:
    found = Recipe(REGISTRY["yarn"]("128k"), temperature_slope=0.07).schedule(LLAMA_3)
    assert found.attention_factor == pytest.approx(0.07 * 2.772588722239781 + 1)
    assert Recipe(REGISTRY["yarn"]("128k")).schedule(LLAMA_3).attention_factor == pytest.approx(1.2772588722239782)


def test_an_original_context_changes_the_factor_and_not_the_length() -> None:
    found = Recipe(REGISTRY["yarn"]("128k"), original_context=4096).schedule(LLAMA_3)
    assert (found.form.factor, found.context) == (32.0, 131072)


@given(tokens=st.integers(1, 1 << 24))
def test_lengths_are_written_as_they_are_read(tokens: int) -> None:
    assert parse_tokens(format_tokens(tokens)) == tokens


def test_lengths_are_written_the_shortest_way() -> None:
    assert [format_tokens(number) for number in (131072, 1 << 20, 163840, 1010000)] == ["128k", "1M", "160k", "1010000"]


@pytest.mark.parametrize(("text", "repair"), [("131072", "--yarn 128k"), ("1e308", "--yarn 128k"), ("3000", "--yarn")])
def test_a_length_without_its_suffix_is_no_factor(text: str, repair: str) -> None:
    with pytest.raises(RecipeError, match=f"too large for one; write a length as {repair}"):
        parse_factor(text, "--yarn")
    assert parse_factor("999", "--yarn") == 999.0


def test_the_longest_length_is_what_31_bits_count() -> None:
    most = (1 << 31) - 1
    assert parse_tokens("2147483647") == most
    for text in ("2147483648", "2048M", "2097152k", "999999999999"):
        with pytest.raises(RecipeError, match="is more than 2,147,483,647 tokens, the positions that runtimes"):
            parse_tokens(text)
    assert parse_tokens("2047M") == 2047 << 20
    assert (is_length("2047M"), is_length("2048M"), is_length("2097151k"), is_length("2097152k")) == (
        True, False, True, False,
    )  # fmt: skip
    assert not any(map(is_length, ("128", "128K", "1m", "0k", 128, None, "k")))
    assert is_length("007k")


@pytest.mark.parametrize(
    ("text", "tokens"), [("1048k", 1 << 20), ("65k", 65536), (" 524K ", 1 << 19), ("66k", 66 << 10)]
)
def test_round_thousands_are_powers_of_two(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1000", "128k"), ("1024", "1k"), ("1025", "128k"), ("2048.5", "128k"), ("1048576", "1M"),
        (str((1 << 27) - 1024), "131071k"), (str(1 << 27), "128k"), (str(1 << 28), "128k"),
    ],
)  # fmt: skip
def test_the_repair_names_the_length_that_was_meant(text: str, meant: str) -> None:
    with pytest.raises(RecipeError, match=f"too large for one; write a length as --yarn {meant}$"):
        parse_factor(text, "--yarn")
