"""Schedules, specs and recipes: what they take, what they refuse, and what is written of them, also
as flags.
"""

import hashlib
import math
import struct
from typing import Any

import numpy as np
import pytest
import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.options import RecipeValues
from ropeconv.rope.errors import ImpossibleSize, RecipeError
from ropeconv.rope.forms import InterpolatedForm
from ropeconv.rope.recipe import Recipe, flags
from ropeconv.rope.schedule import LogN, QueryScaling, Schedule
from ropeconv.verbs.recipes import build_recipe

from ..support.baking import recipe_of
from .small_head import BASE, THETA, TRAINED, made, spec


def plain(**changes: Any) -> Schedule:
    return Schedule(
        **{
            **{
                "inv_freq": np.array(BASE),
                "attention_factor": 1.0,
                "context": 64,
                "original_context": 32,
            },
            **changes,
        }
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"inv_freq": np.array([1.0, -0.1])},
        {"inv_freq": np.array([1.0, np.inf])},
        {"inv_freq": np.array([np.nan])},
        {"short_inv_freq": np.array([-1.0])},
        {"attention_factor": 0.0},
        {"attention_factor": -1.0},
        {"attention_factor": math.nan},
        {"attention_factor": math.inf},
        {"context": 0},
        {"context": -1},
    ],
)
def test_no_schedules(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        plain(**wrong)


def test_the_digest_covers_every_number_that_changes_a_logit() -> None:
    first = struct.pack("<4d", *BASE)
    second = struct.pack("<dd", 1.0, 1.0)
    parts = [b"ropeconv schedule 1", first, b"", second]
    lengths = b"".join(struct.pack("<q", len(part)) for part in parts)
    assert plain().digest == hashlib.sha256(lengths + b"".join(parts)).hexdigest()
    changed = [
        plain(),
        plain(inv_freq=np.array([1.0, 0.1, 0.01, 0.002])),
        plain(attention_factor=2.0),
        plain(softmax_scale=2.0),
        plain(short_inv_freq=np.array(BASE)),
        plain(log_n=LogN("full", 64)),
        plain(log_n=LogN("clamped", 64)),
        plain(log_n=LogN("full", 65)),
        plain(query_scaling=QueryScaling(1.0, 2)),
        plain(query_scaling=QueryScaling(1.0, 3)),
        plain(query_scaling=QueryScaling(2.0, 2)),
        plain(query_scaling=QueryScaling(1.0, 2, 3.0)),
    ]
    assert len({schedule.digest for schedule in changed}) == len(changed)
    assert plain(context=128).digest == plain().digest


def test_a_schedule_as_data_names_what_is_not_usual() -> None:
    assert plain().to_dict() == {
        "inv_freq": BASE,
        "attention_factor": 1.0,
        "context": 64,
        "original_context": 32,
        "digest": plain().digest,
    }
    whole = plain(
        short_inv_freq=np.array(BASE),
        softmax_scale=2.0,
        log_n=LogN("full", 64),
        query_scaling=QueryScaling(1.0, 2),
    ).to_dict()
    assert whole["short_inv_freq"] == BASE
    assert whole["softmax_scale"] == 2.0
    assert whole["log_n"] == {"kind": "full", "length": 64}
    assert whole["query_scaling"] == {"beta": 1.0, "length": 2, "gain": 1.0}


def test_a_spec() -> None:
    partial = spec(head_dim=20)
    assert (partial.unrotated, spec().unrotated, spec(mla=True).unrotated) == (6, 0, 4)
    assert not spec().scaled
    assert spec(attention_factor=1.1).scaled
    scaled = spec(
        form=InterpolatedForm(THETA, 4.0), context=16384, attention_factor=1.1, softmax_scale=1.2
    )
    assert scaled.scaled
    assert scaled.unscaled() == spec()
    now = scaled.current()
    assert (now.context, now.original_context, now.attention_factor, now.softmax_scale) == (
        16384,
        TRAINED,
        1.1,
        1.2,
    )
    np.testing.assert_allclose(now.inv_freq, [value / 4 for value in BASE])
    assert now.short_inv_freq is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 2049}, "a head_dim of"),
        ({"local_rotary_dim": 2049}, "rotating dimensions"),
        ({"rotary_dim": 2049}, "rotating dimensions in a head"),
        ({"layers": ("global",) * 10_001}, "layers, and models have at most"),
        ({"windows": (None,) * 10_001}, "layers, and models have at most"),
        ({"original_context": 1 << 31}, "a trained context of 2,147,483,648 tokens"),
        (
            {"context": 1 << 31},
            "a context of 2,147,483,648 tokens, and models have at most 2,147,483,647",
        ),
    ],
)
def test_sizes_that_no_model_has(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ImpossibleSize, match=words):
        spec(**changes)
    most = spec(head_dim=2048, layers=("global",) * 10_000, context=(1 << 31) - 1)
    assert (most.query_length, spec(query_scaling=QueryScaling(1.0, 32)).query_length) == (
        TRAINED,
        32,
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"context": 0}, "--context"),
        ({"original_context": -1}, "--original-context"),
        ({"attention_factor": 0.0}, "--attention-factor"),
        ({"temperature_slope": 0.0}, "--temperature-slope"),
        ({"temperature_intercept": -1.0}, "--temperature-intercept"),
        ({"log_n": "half"}, "clamped or full"),
        ({"attention_factor": 1.0, "temperature_slope": 0.1}, "pass one of them"),
        ({"attention_factor": 1.0, "temperature_intercept": 0.1}, "pass one of them"),
        ({"log_n_length": 64}, "needs --log-n"),
        ({"log_n": "full", "log_n_length": 0}, "--log-n-length"),
        ({"on_top": True, "original_context": 64}, "leave --original-context out"),
        ({"on_top": 1}, "true or false"),
        ({"keep_short": "yes"}, "true or false"),
        ({"keep_short": True, "log_n": "full"}, "leave one of them out"),
    ],
)
def test_modifiers_that_contradict_each_other(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        recipe_of("yarn", 4.0, **wrong)


def test_modifiers_replace_what_the_method_has() -> None:
    assert made("linear", 4.0, context=9000).context == 9000
    assert made("linear", 4.0, original_context=1000).context == 4000
    assert made("linear", 4.0, original_context=1000).original_context == 1000
    assert made("yarn", 4.0, attention_factor=1.5).attention_factor == 1.5
    assert made("linear", math.e, temperature_slope=0.2).attention_factor == pytest.approx(1.2)
    assert made("linear", math.e, temperature_intercept=0.5).attention_factor == pytest.approx(0.6)
    assert made(
        "theta", 1e6, context=4 * TRAINED, temperature_slope=0.2
    ).attention_factor == pytest.approx(0.2 * math.log(4) + 1)
    assert made("linear", 4.0, log_n="full").log_n == LogN("full", TRAINED)
    assert made("linear", 4.0, log_n="full", log_n_length=64).log_n == LogN("full", 64)
    assert made("linear", 4.0).log_n is None
    assert made("theta", 1e6).context == TRAINED
    assert made("theta", 1e6, of=spec(context=8192)).context == 8192
    assert made("theta", 1e6, original_context=9000).context == 9000


def test_a_recipe_starts_from_the_unscaled_rope() -> None:
    scaled = spec(form=InterpolatedForm(THETA, 4.0), context=16384)
    assert recipe_of("yarn", 4.0).start(scaled) == spec()
    assert recipe_of("yarn", 4.0, on_top=True).start(scaled) is scaled
    assert recipe_of("as-is").start(scaled) is scaled
    longer = spec(context=8192)
    assert recipe_of("yarn", 4.0).start(longer) is longer


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "JSON object"),
        ({"method": "yarn", "parameters": [4]}, "JSON object"),
        ({"method": "cubic"}, "'cubic'"),
        ({}, "names the method None"),
        (None, "JSON object"),
        (3, "JSON object"),
        ({"method": []}, "names the method"),
        (
            {"method": "yarn", "parameters": {"factor": 4.0}, "on_top": "yes"},
            "--on-top must be true or false",
        ),
        ({"method": "yarn", "parameters": {"factor": 4.0}, "more": 1}, "unknown key 'more'"),
        (
            {"method": "yarn", "parameters": {"factor": 4.0, "more": 1}},
            "'more'; yarn takes beta_fast, beta_slow, ",
        ),
        ({"method": "yarn", "parameters": {}}, "the recipe for yarn needs"),
        ({"method": "yarn"}, "needs"),
    ],
)
def test_no_recipes(data: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        Recipe.from_dict(data)


def test_a_recipe_as_data() -> None:
    recipe = recipe_of("yarn", 4.0, context=64, on_top=True)
    assert recipe.to_dict() == {
        "method": "yarn",
        "parameters": {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True},
        "context": 64,
        "on_top": True,
    }
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert recipe_of("as-is").to_dict() == {"method": "as-is", "parameters": {"on": True}}
    lists = recipe_of("inv-freq", (1.0, 0.5, 0.25, 0.125))
    assert lists.to_dict()["parameters"]["inv_freq"] == [1.0, 0.5, 0.25, 0.125]
    assert Recipe.from_dict(lists.to_dict()) == lists


RECIPES: dict[str, Recipe] = {
    "--yarn 16": recipe_of("yarn", 16.0),
    "--yarn 4 --beta-fast 16 --no-truncate --attention-factor 1.25": recipe_of(
        "yarn", 4.0, 16.0, 1.0, False, attention_factor=1.25
    ),
    f"--yarn {math.pi!r}": recipe_of("yarn", math.pi),
    "--theta 500000 --context 16384": recipe_of("theta", 500000.0, context=16384),
    "--theta-for 131072": recipe_of("theta-for", 131072),
    "--linear 4 --log-n clamped --log-n-length 1024": recipe_of(
        "linear", 4.0, log_n="clamped", log_n_length=1024
    ),
    "--mixed 4 --keep-short": recipe_of("mixed", 4.0, keep_short=True),
    "--llama3 4 --on-top": recipe_of("llama3", 4.0, on_top=True),
    "--ntk 2 --original-context 4096": recipe_of("ntk", 2.0, original_context=4096),
    "--dynamic yarn:4 --at 3000": recipe_of("dynamic", "yarn:4", 3000),
    "--by-parts 4 --temperature-slope 0.2": recipe_of("by-parts", 4.0, temperature_slope=0.2),
    "--as-is": recipe_of("as-is"),
}


def read(words: list[str]) -> Recipe:
    """The recipe that the options of `ropeconv apply` give."""
    recipes: list[Recipe] = []
    app = typer.Typer(add_completion=False)

    @app.command()
    @expand_options
    def read_command(recipe: RecipeValues) -> None:
        recipes.append(build_recipe(recipe))

    app(words, standalone_mode=False)
    return recipes[0]


@pytest.mark.parametrize("line", list(RECIPES))
def test_the_words_are_read_as_the_same_recipe(line: str) -> None:
    recipe = RECIPES[line]
    assert flags(recipe) == line.split()
    assert read(line.split()) == recipe


@pytest.mark.parametrize(
    "flag", ["--attention-factor", "--temperature-slope", "--temperature-intercept", "--theta"]
)
def test_zero_is_a_value_and_not_an_option_that_was_left_out(flag: str) -> None:
    method = [] if flag == "--theta" else ["--yarn", "4"]
    with pytest.raises(RecipeError, match=flag):
        read([*method, flag, "0"])
    assert read([*method, flag, "1.5"])
