"""YaRN with equal betas, as Kimi K2 publishes it: a step in place of a ramp, the same in every
runtime.
"""

import math
from typing import Any

import numpy as np
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Llama3, Yarn
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe, explicit_defaults, flags, parse_recipe, recipe_text
from ropeconv.rope.spec import RopeSpec

from ..support.baking import recipe_of

PAIR = {"mscale": 1.0, "mscale_all_dim": 1.0}
KIMI_K2 = RopeSpec(64, 64, Yarn(5e4, 32.0, 4096, 1.0, 1.0), 4096, 131072, mla=True)
SCOUT = RopeSpec(128, 128, Llama3(5e5, 16.0, 8192, 1.0, 1.0), 8192, 10485760)


def deepseek(
    theta: float, factor: float, length: int, fast: float, slow: float, size: int, truncate: bool
) -> np.ndarray[Any, Any]:
    """The frequencies as the code of DeepSeek and Kimi gives them, in float32 where that is."""

    def dimension(turns: float) -> float:
        return (size * math.log(length / (turns * 2 * math.pi))) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    pair = np.arange(size // 2, dtype=np.float32)
    ramp = np.clip((pair - np.float32(low)) / np.float32(high - low), 0, 1)
    power = np.float32(theta) ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    fast_part = np.float32(1) / power
    slow_part = np.float32(1) / (np.float32(factor) * power)
    return np.asarray(slow_part * ramp + fast_part * (1 - ramp), np.float32)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("theta", "factor", "length", "beta", "size"),
    [
        (5e4, 32.0, 4096, 1.0, 64),  # Kimi K2
        (5e4, 64.0, 4096, 1.0, 64),
        (1e4, 40.0, 4096, 32.0, 64),
        (1e6, 4.0, 32768, 8.0, 128),
        (1e4, 4.0, 6, 1.0, 64),  # both ends at pair 0: the code adds 0.001
    ],
)
def test_the_step_is_that_of_the_reference_code(
    theta: float, factor: float, length: int, beta: float, size: int, truncate: bool
) -> None:
    ours = Yarn(theta, factor, length, beta, beta, truncate).inv_freq(size)
    theirs = deepseek(theta, factor, length, beta, beta, size, truncate)
    ratio = theta ** (-2 * np.arange(size // 2) / size) / ours
    # each pair keeps its frequency or is divided by the factor, and the same pairs are
    divided = np.isclose(ratio, factor, rtol=1e-12)
    kept = np.isclose(ratio, 1, rtol=1e-12)
    assert (divided ^ kept).all()
    assert divided.sum() < size // 2
    np.testing.assert_allclose(ours, theirs, rtol=6e-7)  # what float32 leaves


def test_other_betas_are_another_schedule() -> None:
    """What silent defaults did to Kimi K2: 11 of 32 pairs, by up to ten times."""
    own = Yarn(5e4, 64.0, 4096, 1.0, 1.0).inv_freq(64)
    usual = Yarn(5e4, 64.0, 4096).inv_freq(64)
    ratio = np.maximum(own / usual, usual / own)
    assert int((ratio > 1.001).sum()) == 11
    assert 5 < ratio.max() < 12


def test_equal_ends_are_taken_and_crossed_ones_refused() -> None:
    assert REGISTRY["yarn"](4.0, 1.0, 1.0).form(KIMI_K2, 4.0) == Yarn(5e4, 4.0, 4096, 1.0, 1.0)
    assert REGISTRY["llama3"](4.0, 1.0, 1.0).form(SCOUT, 4.0) == Llama3(5e5, 4.0, 8192, 1.0, 1.0)
    for name, values in (("yarn", (1.0, 2.0)), ("llama3", (2.0, 1.0)), ("by-parts", (4.0, 2.0))):
        with pytest.raises(RecipeError, match="must be at least"):
            REGISTRY[name](4.0, *values)


@pytest.mark.parametrize(
    ("spec", "method", "settings", "form"),
    [
        (KIMI_K2, "yarn", {}, Yarn(5e4, 64.0, 4096, 1.0, 1.0)),
        (KIMI_K2, "yarn", {"beta_fast": 8.0}, Yarn(5e4, 64.0, 4096, 8.0, 1.0)),
        (KIMI_K2, "yarn", {"beta_fast": 32.0}, Yarn(5e4, 64.0, 4096, 32.0, 1.0)),
        (SCOUT, "llama3", {}, Llama3(5e5, 32.0, 8192, 1.0, 1.0)),
        (SCOUT, "llama3", {"high_freq_factor": 4.0}, Llama3(5e5, 32.0, 8192, 1.0, 4.0)),
    ],
)
def test_a_setting_that_is_given_counts_although_it_is_the_default(
    spec: RopeSpec, method: str, settings: dict[str, float], form: object
) -> None:
    chosen = REGISTRY[method](2.0, **settings)
    explicit = explicit_defaults(chosen, settings)
    recipe = Recipe(chosen, on_top=True, explicit=explicit)
    assert recipe.schedule(spec).form == form
    # a saved recipe and both texts of one say the same
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert parse_recipe(recipe_text(recipe)) == recipe
    words = flags(recipe) or []
    assert [f"--{name.replace('_', '-')}" in words for name in settings] == [True] * len(settings)


def test_a_setting_is_inherited_only_of_a_scaling_of_its_kind() -> None:
    method = REGISTRY["yarn"](4.0)
    assert method.inherit(SCOUT.form) == method
    assert method.inherit(KIMI_K2.form) == REGISTRY["yarn"](4.0, 1.0, 1.0)
    assert method.inherit(KIMI_K2.form, ("beta_fast",)) == REGISTRY["yarn"](4.0, 32.0, 1.0)
    with pytest.raises(RecipeError, match=r"1 is below 2; the model's scaling has beta_fast 1"):
        REGISTRY["yarn"](4.0, beta_slow=2.0).inherit(KIMI_K2.form)


@pytest.mark.parametrize("names", [("factor",), ("beta",), "beta_fast", ["beta_fast"], None])
def test_explicit_names_settings_of_the_method(names: Any) -> None:
    with pytest.raises(RecipeError, match="explicit"):
        recipe_of("yarn", 4.0, explicit=names)
