"""What methods take as parameters, also as lengths, and what they refuse; their names, and what
reaches further.
"""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Plain
from ropeconv.rope.lengths import (
    MOST_TOKENS,
    factor_reaching,
    format_tokens,
    is_length,
    parse_factor,
    parse_tokens,
)
from ropeconv.rope.methods import method as checks
from ropeconv.rope.methods.method import REGISTRY, ScaledMethod
from ropeconv.rope.methods.vectors import method_from_lists
from ropeconv.rope.recipe import MODIFIERS, Recipe, flags, parse_recipe
from ropeconv.rope.spec import RopeSpec

from ..support.baking import recipe_of
from .small_head import spec

LLAMA_2 = RopeSpec(128, 128, Plain(1e4), 4096, 4096)
NEVER = ("1", None, math.nan, math.inf, -math.inf, [1.0])


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.positive, (1, 1e-30, 1e30), (0, -1, 0.99e-30, 1.01e30, True)),
        (checks.scale, (1, 1.5, 1e6), (0.999, 0, 1_000_000.5, 1_000_001, True)),
        (checks.share, (0, 1, 0.5), (-0.01, 1.01, True)),
        (checks.number, (0, -1.5, 1e30), (1.01e30, True)),
        (checks.tokens, (1, 5, (1 << 31) - 1), (0, -1, 1.0, 1 << 31, True)),
        (checks.switch, (True, False), (0, 1, "yes")),
        (checks.factor_or_length, (1, 4.0, 1e6, "128k", "1M"), (0.5, "128", "0k", 1_000_001, True)),
        (checks.positive_list, ((1.0, 2),), ((), (1, 0), (1, -1), True)),
        (checks.not_negative_list, ((0.0, 1), (0,)), ((), (1, -1), (math.inf,), True)),
    ],
)
def test_checks_of_values(check: Any, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    assert [check(value) for value in good] == [None] * len(good)
    assert all(check(value) for value in (*bad, *NEVER))


@pytest.mark.parametrize(
    ("method", "values", "words"),
    [
        ("theta", (1.0,), "must be above 1"),
        ("yarn", (4.0, 1.0, 1.5), "beta_fast must be at least"),
        ("by-parts", (4.0, 32.0, 31.0), "beta must be at least alpha"),
        ("llama3", (4.0, 4.0, 3.0), "high_freq_factor must"),
        ("yarn", (4.0, 32.0, 1.0, True, 1.0), "go together"),
        ("mixed", (4.0, 1.1), "0 to 1"),
        ("theta-for", (0,), "a token count"),
        ("longrope", ((),), "positive numbers"),
        ("inv-freq", ((-1.0,),), "not negative"),
        *(
            ("piecewise", (arg,), "FACTOR@PAIR.*or a length as in 128k@44")
            for arg in ("0.5@3", "8@0", "8", "128kB@35")
        ),
        *(
            ("piecewise", (arg,), "--piecewise: spec must be written S@I")
            for arg in (4, 4.0, None, ["4@2"], True)
        ),
        *(
            ("dynamic", (arg,), "--dynamic: kind must be written METHOD:S")
            for arg in (4, 4.0, None, ["ntk:2"], True)
        ),
        *(
            (
                "dynamic",
                (arg,),
                (
                    "--dynamic takes METHOD:S with METHOD one of linear, ntk, by-parts, yarn and S"
                    " >= 1"
                ),
            )
            for arg in (
                "linear",
                "linear:",
                "linear:0.5",
                "cubic:2",
                "ntk:-1",
                "linear:4x",
                "ntk:2:3",
                "ntk:1e3",
                "",
            )
        ),
    ],
)
def test_parameters_that_are_refused(method: str, values: tuple[Any, ...], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        REGISTRY[method](*values)


# Any number, any type


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
SPECS = tuple(
    RopeSpec(width, width, Plain(1e4), length, length)
    for width in (2, 8, 128)
    for length in (2, 4096)
)
PARAMETERS = [
    (name, item.name)
    for name in REGISTRY
    if name != "theta-bound"
    for item in dataclasses.fields(REGISTRY[name])
]


def outcome(data: dict[str, Any], spec: RopeSpec) -> str:
    """ "refused" or "taken"; any error but a RecipeError is raised."""
    try:
        schedule = Recipe.from_dict(data).schedule(spec)
    except RecipeError:
        return "refused"
    assert 0 < schedule.context <= MOST_TOKENS
    return "taken"


@pytest.mark.parametrize(
    ("name", "parameter"), [*PARAMETERS, *(("modifiers", name) for name in MODIFIERS)]
)
def test_every_number_is_taken_or_refused_and_none_beyond_its_range_is_taken(
    name: str, parameter: str
) -> None:
    values = next((case[1] for case in NAMES if case[0] == name), (4.0,))
    seed = recipe_of("yarn" if name == "modifiers" else name, *values).to_dict()
    for value in (*INFINITE, *OTHER):
        if name == "modifiers":
            document = {**seed, "log_n": "full", parameter: value}
        else:
            document = {**seed, "parameters": {**seed["parameters"], parameter: value}}
        outcomes = {outcome(document, model) for model in SPECS}
        if value in INFINITE or value != value:
            assert outcomes == {"refused"}, value
    assert outcome(seed, RopeSpec(8, 8, Plain(1e4), 64, 64)) == "taken"


# Names, flags and files


NAMES = [
    ("theta", (1e6,), "theta1000000", ""),
    ("theta-for", (8192,), "theta-for8192", "--theta-for 512k"),
    ("theta-bound", (8192,), "theta-bound8192", "--theta-bound 512k"),
    ("as-is", (), "as-is", ""),
    ("piecewise", ("4@2",), "piecewise4-2", "--piecewise 512k@2"),
    ("longrope", ((1.0, 2.0, 3.0, 4.0),), "longrope", ""),
    ("inv-freq", ((1.0, 0.5, 0.2, 0.1),), "inv-freq", ""),
    ("dynamic", ("ntk:2", 8192), "dynamic-ntk2", "--dynamic ntk:2 --at 512k"),
    ("dynamic", ("yarn:8", 8192), "dynamic-yarn8", "--dynamic yarn:128 --at 512k"),
    ("dynamic", ("yarn:200", 8192), "dynamic-yarn200", "--dynamic yarn:200 --at 512k"),
    ("dynamic", ("linear:1", 8192), "dynamic-linear1", "--dynamic linear:128 --at 512k"),
    *(
        (name, (4.0,), f"{name}4", f"--{name} 512k")
        for name, cls in REGISTRY.items()
        if issubclass(cls, ScaledMethod)
    ),
]


@pytest.mark.parametrize(("name", "values", "label", "longer"), NAMES)
def test_names_labels_and_flags_of_methods(
    name: str, values: tuple[Any, ...], label: str, longer: str
) -> None:
    method = REGISTRY[name](*values)
    assert method.summary
    assert method.__doc__
    assert (method.label, method.longer(1 << 19, 4096)) == (label, longer)
    recipe = Recipe(method) if name == "as-is" else Recipe(method, attention_factor=1.1)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert {case[0] for case in NAMES} == set(REGISTRY)


def test_flags_that_reach_a_length_are_read_as_a_length() -> None:
    """A length from 1,024 tokens on is written as it is; a shorter one would be read as a
    factor.
    """
    recipes = recipe_of("yarn", 4.0), recipe_of("piecewise", "4@2")
    assert [recipe.method.longer(2500, 64) for recipe in recipes] == [
        "--yarn 2500",
        "--piecewise 2500@2",
    ]
    assert [recipe.method.longer(300, 64) for recipe in recipes] == [
        "--yarn 1k",
        "--piecewise 1k@2",
    ]


@pytest.mark.parametrize(
    ("method", "original_context", "context", "command"),
    [
        ("yarn", 4096, 16384, "--yarn 4"),
        ("linear", 4096, 16384, "--linear 4"),
        ("theta-for", 4096, 16384, "--theta-for 16384"),
        ("inv-freq", 4096, 16384, None),
        ("dynamic", 4096, 16384, None),
        ("piecewise", 6, 64, None),
        ("piecewise", 1 << 20, 1 << 21, None),
        ("piecewise", 7, 28, "--piecewise 4@1"),
        ("piecewise", 700, 2800, "--piecewise 4@3"),
    ],
)
def test_a_method_that_reaches_a_context(
    method: str, original_context: int, context: int, command: str | None
) -> None:
    """A split needs a pair on either side: pairs of periods within the trained context, and
    others.
    """
    result = REGISTRY[method].for_context(spec(original_context=original_context), context)
    assert (result and result.command) == command


def test_methods_are_said_to_work_untuned_as_far_as_papers_report() -> None:
    """Peng et al. 2023 for the parts, bloc97 and Su 2023 for NTK, Ding et al. 2024; the others are
    for training.

    Su tried his forms at 8 times, where YaRN loses less (docs/reproducing.md), so they count as
    known up to 4.
    """
    reported = {
        "ntk": 4,
        "ntk-old": 4,
        "by-parts": 4,
        "yarn": 4,
        "ntk-fixed": 4,
        "mixed": 4,
        "longrope": 8,
    }
    assert {name: kind.max_untuned_factor for name, kind in REGISTRY.items()} == dict.fromkeys(
        REGISTRY, 1
    ) | reported
    notes = [(kind.max_untuned_factor, kind.finetuning_note) for kind in REGISTRY.values()]
    assert all(f"{factor:g} times" in note for factor, note in notes if " times" in note)


@pytest.mark.parametrize(
    ("method", "lists", "expected"),
    [
        (
            "longrope",
            {"long_factor": [4.0], "short_factor": [1.0], "inv_freq": [1.0]},
            ((4.0,), (1.0,)),
        ),
        ("longrope", {"long_factor": [4.0]}, ((4.0,),)),
        ("longrope", {"short_factor": [1.0]}, ((1.0,), (1.0,))),
        ("inv-freq", {"long_factor": [4.0], "inv_freq": [1.0], "more": [7.0]}, ((1.0,),)),
        (
            "inv-freq",
            {"long_factor": [4.0], "more": [7.0]},
            "no 'inv_freq' list; it has long_factor, more",
        ),
        ("inv-freq", {"short_factor": [1.0]}, "no 'inv_freq' list; it has short_factor"),
        ("longrope", {}, "--longrope: the input has no 'long_factor' list; it has nothing"),
    ],
)
def test_lists_of_a_file_are_taken_by_name(
    method: str, lists: dict[str, list[float]], expected: Any
) -> None:
    if isinstance(expected, tuple):
        assert method_from_lists(REGISTRY[method], lists) == REGISTRY[method](*expected)
        return
    with pytest.raises(RecipeError, match=expected):
        method_from_lists(REGISTRY[method], lists)


# Lengths

SCALED = ["linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn", "llama3"]
LLAMA_3 = RopeSpec(128, 128, Plain(500000.0), 8192, 8192)
MOST = (1 << 31) - 1
"""Runtimes count positions with 31 bits."""


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1),
        ("131072", 131072),
        ("128k", 131072),
        (" 4K", 4096),
        ("1M", 1 << 20),
        ("66k", 66 << 10),
        ("2147483647", MOST),
        ("2047M", 2047 << 20),
        ("131k", 131072),
        (" 524K ", 524288),
        ("1048k", 1 << 20),
    ],
)
def test_a_number_of_tokens(text: str, tokens: int) -> None:
    """Round thousands of the decimal names of models are powers of two."""
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "0k", "-1", "-4k", "1.5k", "128kb", "1g", "k", "many"])
def test_what_is_not_a_number_of_tokens(text: str) -> None:
    with pytest.raises(RecipeError, match="not a number of tokens"):
        parse_tokens(text)


@given(tokens=st.integers(1, 1 << 24))
def test_lengths_are_written_as_they_are_read(tokens: int) -> None:
    assert parse_tokens(format_tokens(tokens)) == tokens


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("4", 4.0),
        ("0.5", 0.5),
        ("999", 999.0),
        ("1000", 1000.0),
        ("0004", 4.0),
        ("1e3", 1000.0),
        ("128k", "128k"),
        ("8K", "8k"),
        ("1m", "1M"),
        ("65k", "65k"),
        ("1k", "1k"),
        ("1024", "1k"),
        ("1025", "1025"),
        ("100000", "100000"),
        ("1010000", "1010000"),
        ("131072", "128k"),
        ("2147483647", "2147483647"),
    ],
)
def test_a_factor_or_a_length(text: str, factor: float | str) -> None:
    """Up to 1,000 a number is a factor; a whole number from 1,024 on is a length; nothing is
    both.
    """
    assert parse_factor(text, "--yarn") == factor
    assert is_length(factor) == isinstance(factor, str)


@pytest.mark.parametrize(
    "text", ["1000.5", "1001", "1023", "1024.5", "2048.0", "1e5", "1e308", "100,000", "2147483648"]
)
def test_a_number_that_could_be_either_is_neither(text: str) -> None:
    with pytest.raises(RecipeError, match="--yarn|tokens"):
        parse_factor(text, "--yarn")


@pytest.mark.parametrize("written", [100000, "100000"])
def test_a_whole_number_is_a_length_in_python_as_on_the_command_line(written: int | str) -> None:
    """Qwen3 at 100,000: the factor is 100000 / 32768 = 3.0517578125. A float is a factor that was
    computed.
    """
    for name in ("yarn", "linear", "ntk", "mixed", "by-parts", "llama3"):
        method = REGISTRY[name](written)
        assert (method.length, method.factor_over(32768)) == (100000, 3.0517578125)
        assert Recipe.from_dict(json.loads(json.dumps(Recipe(method).to_dict()))).method == method
        assert parse_recipe(f"{name}:{written}") == Recipe(method)
        assert flags(Recipe(method)) == [f"--{name}", "100000"]
    assert REGISTRY["piecewise"](f"{written}@20").length == 100000
    assert REGISTRY["yarn"](2048.0).length is None
    with pytest.raises(RecipeError, match="up to 1,000, or a length"):
        REGISTRY["yarn"](1010)


def test_a_factor_reaches_its_length_whichever_way_it_is_rounded() -> None:
    """Runtimes multiply the trained length by the factor and cut the product to whole tokens."""
    lengths = [*range(3001, 3400), *range(5000, 5400), 100000, 1010000]
    pairs = [(length, trained) for length in lengths for trained in (1000, 2000, 3000, 4096)]
    assert all(
        int(trained * factor_reaching(length, trained)) == length for length, trained in pairs
    )
    assert any(int(trained * (length / trained)) < length for length, trained in pairs), (
        "the control"
    )
    assert factor_reaching(131072, 32768) == 4


def test_a_length_within_the_trained_one_is_an_error_with_the_repair() -> None:
    words = (
        "--yarn 8k is within the trained 8,192 tokens; give a longer length, such as --yarn 32k, or"
        " a factor"
    )
    with pytest.raises(RecipeError, match=words):
        recipe_of("yarn", "8k").schedule(LLAMA_3)


@pytest.mark.parametrize("name", SCALED)
def test_a_length_gives_the_schedule_of_its_factor_and_stays_in_the_recipe(name: str) -> None:
    """128k over 8,192 tokens is 16, over 4,096 it is 32: by hand, and the same recipe for both."""
    recipe = recipe_of(name, "128k")
    for model, factor in ((LLAMA_3, 16.0), (LLAMA_2, 32.0)):
        schedule = recipe.schedule(model)
        same = recipe_of(name, factor).schedule(model)
        assert schedule.digest == same.digest
        assert schedule.context == same.context == 131072
    other = recipe_of(name, "256k").schedule(LLAMA_3)
    assert not np.allclose(other.inv_freq, recipe.schedule(LLAMA_3).inv_freq)
    saved = json.loads(json.dumps(recipe.to_dict()))
    assert saved["parameters"]["factor"] == "128k"
    assert Recipe.from_dict(saved) == recipe
    assert (recipe.method.label, recipe.method.command) == (f"{name}128k", f"--{name} 128k")
