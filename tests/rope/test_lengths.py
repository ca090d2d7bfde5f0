"""Numbers of tokens, and a length in place of a factor: which numbers they mean, for every method that has a factor."""

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
MOST = (1 << 31) - 1
"""Runtimes count positions with 31 bits."""


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1), ("131072", 131072), ("128k", 131072), (" 4K", 4096), ("128 K", 131072), ("1M", 1 << 20),
        ("2M", 2097152), ("0000000000000000128k", 131072), ("66k", 66 << 10), ("2147483647", MOST),
        ("2047M", 2047 << 20),
        ("65k", 65536), ("131k", 131072), ("262k", 262144), (" 524K ", 524288), ("1048k", 1 << 20), ("2097k", 1 << 21),
        ("4194k", 1 << 22),
    ],
)  # fmt: skip
def test_a_number_of_tokens(text: str, tokens: int) -> None:
    """Round thousands of the decimal names of models are powers of two."""
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "0k", "-1", "-4k", "1.5k", "128kb", "1g", "k", "many"])
def test_what_is_not_a_number_of_tokens(text: str) -> None:
    with pytest.raises(RecipeError, match="not a number of tokens"):
        parse_tokens(text)


@pytest.mark.parametrize("text", ["2147483648", "2048M", "2097152k", "9" * 12 + "M", "9" * 400, "9" * 5000 + "k"])
def test_more_tokens_than_31_bits_count_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="more than 2,147,483,647 tokens, the positions that runtimes|not a number"):
        parse_tokens(text)


@given(tokens=st.integers(1, 1 << 24))
def test_lengths_are_written_as_they_are_read(tokens: int) -> None:
    assert parse_tokens(format_tokens(tokens)) == tokens


def test_lengths_are_written_the_shortest_way() -> None:
    for text in ("128k", "1M", "160k", "1010000", "3M", "1000", "1025", "1536k"):
        assert format_tokens(parse_tokens(text)) == text


@pytest.mark.parametrize(
    ("value", "good"),
    [("128k", True), ("007k", True), ("2047M", True), ("2097151k", True), ("2048M", False), ("2097152k", False),
     ("128", False), ("128K", False), ("1m", False), ("0k", False), ("k", False), (128, False), (None, False),
     ("9" * 5000 + "k", False)],
)  # fmt: skip
def test_a_length_in_a_recipe_has_its_suffix(value: object, good: bool) -> None:
    assert is_length(value) is good


@pytest.mark.parametrize(
    ("text", "factor"),
    [("4", 4.0), ("0.5", 0.5), ("999", 999.0), ("128k", "128k"), ("8K", "8k"), ("1m", "1M"), ("65k", "65k")],
)
def test_a_factor_or_a_length(text: str, factor: float | str) -> None:
    assert parse_factor(text, "--yarn") == factor


@pytest.mark.parametrize("text", ["four", "", "k", "0k", "-4k", "4 kB", "128k@44", "1.5k", "9" * 400 + "M"])
def test_what_is_neither_gets_both_spellings(text: str) -> None:
    with pytest.raises(RecipeError, match="--yarn takes a factor such as 4, or a length such as 128k|is more than"):
        parse_factor(text, "--yarn")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1000", "128k"), ("1024", "1k"), ("1025", "128k"), ("2048.5", "128k"), ("131072", "128k"), ("1048576", "1M"),
        (str((1 << 27) - 1024), "131071k"), (str(1 << 27), "128k"), ("1e308", "128k"),
    ],
)  # fmt: skip
def test_a_length_without_its_suffix_is_too_large_for_a_factor(text: str, meant: str) -> None:
    with pytest.raises(RecipeError, match=f"too large for one; write a length as --yarn {meant}$"):
        parse_factor(text, "--yarn")


@pytest.mark.parametrize(
    ("value", "factor"), [("128k", 16), ("131k", 16), ("100k", 12.5), ("1M", 128), ("12k", 1.5), (3, 3.0)]
)
def test_the_factor_is_length_over_trained(value: float | str, factor: float) -> None:
    assert factor_over(value, 8192, "--yarn") == factor


@pytest.mark.parametrize("text", ["8k", "4k", "1k"])
def test_a_length_within_the_trained_one_is_an_error_with_the_repair(text: str) -> None:
    words = rf"--yarn {text} is within the trained 8,192 tokens; give a longer length, such as --yarn 32k, or a factor"
    with pytest.raises(RecipeError, match=words):
        Recipe(REGISTRY["yarn"](text)).schedule(LLAMA_3)


def test_every_method_with_a_factor_is_here() -> None:
    assert [name for name, kind in REGISTRY.items() if issubclass(kind, ScaledMethod)] == SCALED


@pytest.mark.parametrize("name", SCALED)
def test_a_length_gives_the_schedule_of_its_factor_and_stays_in_the_recipe(name: str) -> None:
    """128k over 8,192 tokens is 16, over 4,096 it is 32: by hand, and the same recipe for both."""
    recipe = Recipe(REGISTRY[name]("128k"))
    for spec, factor in ((LLAMA_3, 16.0), (LLAMA_2, 32.0)):
        found, same = recipe.schedule(spec), Recipe(REGISTRY[name](factor)).schedule(spec)
        assert found.digest == same.digest
        assert found.context == same.context == 131072
    other = Recipe(REGISTRY[name]("256k")).schedule(LLAMA_3)
    assert not np.allclose(other.inv_freq, recipe.schedule(LLAMA_3).inv_freq)
    saved = json.loads(json.dumps(recipe.to_dict()))
    assert saved["parameters"]["factor"] == "128k"
    assert Recipe.from_dict(saved) == recipe
    assert (recipe.method.label, recipe.method.command) == (f"{name}128k", f"--{name} 128k")
