"""The two errors of the mathematics, values as messages show them, and the base classes that compute nothing."""

from __future__ import annotations

import pytest

from ropeconv.rope.errors import RecipeError, RopeconvError, shown
from ropeconv.rope.forms import Form
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.methods.method import LARGEST_SCALE, Method, factor_or_length, scale, tokens

from .small_head import spec


def test_exit_codes() -> None:
    """1 for a failure, 2 for a value that cannot be taken; a recipe with a wrong value is a ValueError too."""
    assert (RopeconvError.exit_code, RecipeError.exit_code) == (1, 2)
    assert isinstance(RecipeError(""), ValueError)


def test_lists_are_shown_to_their_second_level() -> None:
    assert [shown([1]), shown([[1]]), shown([[[1]]])] == ["[1]", "[[1]]", "[[[...]]]"]


def test_neither_a_form_nor_a_method_has_frequencies_of_its_own() -> None:
    with pytest.raises(NotImplementedError):
        Form(1e4).inv_freq(8)
    with pytest.raises(NotImplementedError):
        Method().schedule(spec())


def test_the_largest_values_that_methods_take() -> None:
    assert LARGEST_SCALE == 1e6
    for check in (scale, factor_or_length):
        assert [check(value) is None for value in (1e6, 1_000_000.5, 1_000_001)] == [True, False, False]
    assert [tokens(value) is None for value in (1, (1 << 31) - 1, 1 << 31)] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "words"),
    [("piecewise", "--piecewise: spec must be written S@I"), ("dynamic", "--dynamic: kind must be written METHOD:S")],
)
def test_what_is_written_as_text_is_text(name: str, words: str) -> None:
    """Also in a recipe of JSON, where a number or a list may stand."""
    for value in (4, 4.0, None, ["4@2"], True):
        with pytest.raises(RecipeError, match=words):
            REGISTRY[name](value)
