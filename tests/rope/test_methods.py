"""Every method against numbers made another way: mpmath, hand computation, published
checkpoints.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeconv.rope.bound.reach import first_violation
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import (
    DynamicNtk,
    InterpolatedForm,
    Llama3,
    LongRope,
    Plain,
    Yarn,
    base_inv_freq,
)
from ropeconv.rope.methods.method import REGISTRY, Method, number, param, register
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.registry import Registry
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

from ..conftest import DATA
from ..support.baking import recipe_of
from .small_head import BASE, TRAINED, made, spec

REFERENCE = json.loads((DATA / "schedules.json").read_text())
CASES = [(case, scale) for case in REFERENCE["cases"] for scale in case["scales"]]
NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "pi": ("linear", {}),
    "ntk_old": ("ntk-old", {}),
    "ntk_aware": ("ntk", {}),
    "ntk_fixed": ("ntk-fixed", {}),
    "byparts_paper": ("by-parts", {}),
    "byparts_ref": ("yarn", {}),
    "byparts_ref_notrunc": ("yarn", {"truncate": False}),
}
FACTORS = ["linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn", "llama3"]


def bare(head_dim: int, theta: float, context: int) -> RopeSpec:
    return RopeSpec(head_dim, head_dim, Plain(float(theta)), context, context)


def schedule(spec: RopeSpec, method: str, *values: object, **more: object) -> Schedule:
    return Recipe(REGISTRY[method](*values, **more)).schedule(spec)


def agrees(actual: Schedule, expected: dict[str, Any]) -> None:
    """Sum, sum of logarithms, and every entry that the reference lists."""
    np.testing.assert_allclose(actual.inv_freq.sum(), expected["sum"], rtol=1e-13)
    np.testing.assert_allclose(np.log(actual.inv_freq).sum(), expected["sum_log"], rtol=1e-13)
    if "inv_freq" in expected:
        np.testing.assert_allclose(actual.inv_freq, expected["inv_freq"], rtol=1e-13)
    for pair, value in expected.get("at", {}).items():
        np.testing.assert_allclose(actual.inv_freq[int(pair)], value, rtol=1e-13)


@pytest.mark.parametrize(
    ("case", "scale"), CASES, ids=[f"d{c['d']}-b{c['base']}-L{c['L']}-s{s}" for c, s in CASES]
)
def test_methods_agree_with_the_reference(case: dict[str, Any], scale: str) -> None:
    model = bare(case["d"], case["base"], case["L"])
    expected = case["scales"][scale]
    for name, (method, more) in NAMED.items():
        actual = schedule(model, method, float(scale), **more)
        agrees(actual, expected[name])
        assert actual.context == case["L"] * int(scale)
    for exponent, mixed in expected["ntk_mixed"].items():
        agrees(schedule(model, "mixed", float(scale), float(exponent)), mixed)
    frozen = schedule(model, "dynamic", f"ntk:{scale}", case["L"] * int(scale)).form
    assert frozen is not None
    assert frozen.theta == pytest.approx(expected["hf_dynamic_base_at_Ls_factor_s"], rel=1e-13)


@pytest.mark.parametrize(
    "row", REFERENCE["attention_factor"], ids=lambda row: f"s{row['s']}-a{row['a']}"
)
def test_temperature(row: dict[str, float]) -> None:
    recipe = recipe_of("yarn", float(row["s"]), temperature_slope=row["a"])
    assert recipe.schedule(bare(128, 1e4, 4096)).attention_factor == pytest.approx(
        row["value"], rel=1e-14
    )


@pytest.mark.parametrize("mla", [False, True])
def test_mscale_pair_of_deepseek(mla: bool) -> None:
    """Both count where neither is 0, as in transformers; the softmax scale is that of MLA."""
    row = REFERENCE["mscale_ratio_deepseek"]
    law = 0.1 * math.log(40) + 1
    pair = {"mscale": row["mscale"], "mscale_all_dim": row["mscale_all_dim"]}
    result = schedule(spec(mla=mla), "yarn", float(row["factor"]), **pair)
    assert result.attention_factor == pytest.approx(row["hf_attention_factor"])
    assert result.softmax_scale == pytest.approx(
        (0.1 * 0.707 * math.log(40) + 1) ** 2 if mla else 1
    )
    for zero in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        without = made("yarn", 40.0, 32.0, 1.0, True, *zero, of=spec(mla=mla))
        assert (without.attention_factor, without.softmax_scale) == (pytest.approx(law), 1.0)
    both = made("yarn", 40.0, 32.0, 1.0, True, 2.0, 1.0, of=spec(mla=mla))
    assert both.attention_factor == pytest.approx((2 * law - 1) / law)


@pytest.mark.parametrize(
    ("method", "values", "expected"),
    [
        ("linear", (4.0,), [value / 4 for value in BASE]),
        ("ntk-old", (4.0,), [40000.0 ** (-i / 4) for i in range(4)]),
        ("ntk", (4.0,), [(10000 * 4 ** (8 / 6)) ** (-i / 4) for i in range(4)]),
        ("ntk-fixed", (4.0,), [40000.0 ** (-i / 4) / 4**0.25 for i in range(4)]),
        ("mixed", (4.0, 0.5), [BASE[i] * 4 ** -(((i + 1) / 4) ** 0.5) for i in range(4)]),
        ("mixed", (4.0,), [BASE[i] * 4 ** -(((i + 1) / 4) ** 0.625) for i in range(4)]),
        ("mixed", (4.0, 0.0), [value / 4 for value in BASE]),
        ("theta", (16.0,), [1.0, 0.5, 0.25, 0.125]),
        (
            "piecewise",
            ("1.5@2",),
            [1, 22500.0**-0.25, 0.01 / 1.5, 0.001 / 1.5],
        ),  # theta 1.5^(8/4) before pair 2
        ("inv-freq", ((1.0, 0.1, 0.0, 0.0),), [1.0, 0.1, 0.0, 0.0]),
    ],
)
def test_frequencies_by_hand(
    method: str, values: tuple[object, ...], expected: list[float]
) -> None:
    result = made(method, *values)
    np.testing.assert_allclose(result.inv_freq, expected, rtol=1e-13)
    assert (result.attention_factor, result.original_context) == (1.0, TRAINED)
    factor = {"piecewise": 1.5, "theta": 1, "inv-freq": 1}.get(method, 4)
    assert result.context == factor * TRAINED


@pytest.mark.parametrize("name", FACTORS)
@given(
    theta=st.floats(100, 1e8),
    context=st.sampled_from([512, 4096, 32768]),
    rotary=st.sampled_from([16, 64, 128]),
)
def test_factor_1_changes_nothing(name: str, theta: float, context: int, rotary: int) -> None:
    model = bare(rotary, theta, context)
    result = schedule(model, name, 1.0)
    np.testing.assert_allclose(result.inv_freq, model.form.inv_freq(rotary), rtol=1e-12)
    assert result.attention_factor == 1


@pytest.mark.parametrize("name", FACTORS)
@given(factor=st.floats(1, 64), theta=st.floats(1e3, 1e7))
def test_frequencies_fall_and_never_rise_above_the_unscaled(
    name: str, factor: float, theta: float
) -> None:
    model = bare(64, theta, 4096)
    inv_freq = schedule(model, name, factor).inv_freq
    assert (np.diff(inv_freq) < 0).all()
    assert (inv_freq <= model.form.inv_freq(64) * (1 + 1e-12)).all()


# The length at which a dynamic method is frozen


@pytest.mark.parametrize(
    ("at", "growth"), [(1024, 1.0), (4096, 1.0), (6144, 2.0), (8192, 3.0), (16384, 7.0)]
)
def test_dynamic_ntk_has_the_base_of_transformers_and_at_least_the_models_own(
    at: int, growth: float
) -> None:
    """With S = 2, S n / L - (S - 1) is 2 at 1.5 L, 3 at 2 L and 7 at 4 L; the last is beyond S and
    still goes.
    """
    dynamic = made("dynamic", "ntk:2", at)
    assert dynamic.form == Plain(pytest.approx(10000 * growth ** (8 / 6), rel=1e-13))  # type: ignore[arg-type]
    assert (dynamic.context, dynamic.original_context, dynamic.attention_factor) == (
        at,
        TRAINED,
        1.0,
    )


@pytest.mark.parametrize("method", ["linear", "by-parts", "yarn"])
@pytest.mark.parametrize(("at", "factor"), [(1024, 1.0), (4096, 1.0), (6144, 1.5), (16384, 4.0)])
def test_other_dynamic_methods_have_the_length_over_the_trained_one(
    method: str, at: int, factor: float
) -> None:
    dynamic = made("dynamic", f"{method}:4", at)
    static = made(method, factor)
    np.testing.assert_array_equal(dynamic.inv_freq, static.inv_freq)
    assert (dynamic.attention_factor, dynamic.context) == (static.attention_factor, at)
    assert (dynamic.original_context, dynamic.form) == (TRAINED, static.form)


def test_a_dynamic_method_stops_at_its_factor() -> None:
    with pytest.raises(RecipeError, match="--at 16385 is beyond 4 x 4096; choose up to 16384"):
        made("dynamic", "linear:4", 16385)
    with pytest.raises(RecipeError, match="say with --at TOKENS at which length to freeze it"):
        made("dynamic", "linear:4")


def test_dynamic_scaling_is_not_kept_as_it_is() -> None:
    dynamic = spec(form=DynamicNtk(10000.0, 2.0, 4096))
    assert dynamic.form.inv_freq(8) == pytest.approx(BASE)
    with pytest.raises(RecipeError, match=r"freeze it with --dynamic ntk:2 --at TOKENS --replace"):
        recipe_of("as-is").schedule(dynamic)
    linear = spec(form=InterpolatedForm(10000.0, 2.0))
    assert recipe_of("as-is").schedule(linear).inv_freq == pytest.approx(
        [value / 2 for value in BASE]
    )


# Lists


def test_lists_divide_and_give_two_frequency_vectors() -> None:
    lists = REGISTRY["longrope"]((1.0, 2.0, 3.0, 4.0), (1.0, 1.0, 1.0, 2.0))
    result = Recipe(lists, context=16384).schedule(spec())
    np.testing.assert_allclose(result.inv_freq, np.array(BASE) / [1, 2, 3, 4])
    np.testing.assert_allclose(result.short_inv_freq, np.array(BASE) / [1, 1, 1, 2])
    assert result.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(4096)))
    assert (result.context, result.original_context) == (16384, 4096)
    assert result.form == LongRope(10000.0, (1.0, 1.0, 1.0, 2.0), (1.0, 2.0, 3.0, 4.0), 4096)
    assert made("longrope", (1.0, 2.0, 3.0, 4.0), context=8192).short_inv_freq is None
    half = Recipe(REGISTRY["longrope"]((1.0, 2.0), (1.0, 4.0)), context=16384).schedule(
        spec(rotating_share=0.5)
    )
    np.testing.assert_allclose(half.inv_freq, [1, 0.05, 0, 0])  # of the pairs that rotate
    np.testing.assert_allclose(half.short_inv_freq, [1, 0.025, 0, 0])


@pytest.mark.parametrize(
    ("method", "values", "words"),
    [
        ("longrope", ((1.0,) * 3,), "long_factor has 3 numbers and this model rotates 4 pairs"),
        ("longrope", ((1.0,) * 4, (1.0,) * 5), "^--longrope: short_factor has 5 numbers"),
        ("inv-freq", ((1.0,) * 5,), "inv_freq has 5 numbers and this model rotates 4"),
        ("piecewise", ("8@4",), "pair 4 is outside the 4 rotated pairs; choose 1 to 3"),
        (
            "longrope",
            ((1.0, 2.0, 3.0, 1e29),),
            "--longrope gives frequencies that are 0; check its parameters",
        ),
    ],
)
def test_lists_and_splits_fit_the_pairs_of_a_model(
    method: str, values: tuple[object, ...], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        made(method, *values)
    assert made("longrope", (1.0, 2.0, 3.0, 0.9e29)).inv_freq[3] > 0


# Ramps


def test_llama3_ramps_over_turns() -> None:
    """L = 2 pi 4: the pairs of theta = 16 turn 4, 2, 1 and 0.5 times; from 1 to 4 the ramp is 1,
    1/3, 0 and 0.
    """
    form = Llama3(16.0, 8.0, 8 * math.pi, 1.0, 4.0)  # type: ignore[arg-type]
    keep = np.array([1.0, 1 / 3, 0.0, 0.0])
    np.testing.assert_allclose(
        form.inv_freq(8), np.array([1, 0.5, 0.25, 0.125]) * (keep + (1 - keep) / 8), atol=1e-15
    )


@pytest.mark.parametrize(
    ("fast", "slow", "truncate", "expected"),
    [
        (1.0, 3.0, False, [0, 0, 0.5, 1]),
        (1.25, 2.5, True, [0, 0, 0.5, 1]),  # from 1 to 3
        (1.25, 2.5, False, [0, 0, 0.6, 1]),
        (-3, 4.0, False, [0, 0.25, 0.5, 0.75]),  # from 0 to 4
        (0.0, 20.0, False, [0, 1 / 7, 2 / 7, 3 / 7]),  # to the last dimension, 7
        (2.0, 2.0, False, [0, 0, 0, 1]),  # equal ends are 0.001 apart
    ],
)
def test_yarn_ramps_over_pairs_rounded_outward(
    fast: float, slow: float, truncate: bool, expected: list[float]
) -> None:
    """dim(beta) = r ln(L / 2 pi beta) / (2 ln theta): with theta = e and L = 2 pi e it is 4 (1 - ln
    beta).
    """
    betas = (math.exp(1 - fast / 4), math.exp(1 - slow / 4))
    form = Yarn(math.e, 4.0, 2 * math.pi * math.e, *betas, truncate)  # type: ignore[arg-type]
    assert form.ramp(8) == pytest.approx(np.array(expected), abs=1e-9)
    kept = 1 - 0.75 * np.array(expected)
    np.testing.assert_allclose(form.inv_freq(8), base_inv_freq(math.e, 8) * kept, atol=1e-9)


# A base that keeps the bound


def test_a_base_for_the_bound_survives_float32() -> None:
    """Of the windows that are wide enough the first one, of which float32 leaves something."""
    for length in (2048, 4096, 8192):
        result = schedule(bare(128, 1e4, 1024), "theta-bound", length)
        assert result.form is not None
        stored = result.inv_freq.astype(np.float32).astype(np.float64)
        assert first_violation(stored, 0.0, length) is None
        assert result.form.theta == math.floor(result.form.theta)
    assert made("theta-bound", 500, of=spec(head_dim=14)).context == 500
    with pytest.raises(
        RecipeError,
        match="of 16 dimensions 8 rotate, so every base will do; choose one with --theta",
    ):
        made("theta-bound", 500, of=spec(head_dim=16))


def test_a_name_is_declared_once() -> None:
    registry: Registry[int] = Registry("number", "ropeconv.rope.methods")
    registry.add("one", 1, "first.py")
    with pytest.raises(
        RecipeError, match=r"first.py and second.py both declare the number one; rename one"
    ):
        registry.add("one", 2, "second.py")
    assert dict(registry) == {"one": 1}


def test_things_stand_in_their_order_however_they_are_declared() -> None:
    registry: Registry[int] = Registry("number", "ropeconv.rope.methods")
    for item in (1, 3, 2):
        registry.add(str(item), item, "here", order=-item)
    assert list(registry) == ["3", "2", "1"]


@pytest.mark.parametrize(("name", "setting"), [("alpha", "curve"), ("curve", "yarn")])
def test_a_method_and_a_setting_have_different_options(name: str, setting: str) -> None:
    fields = {
        "__annotations__": {"factor": float, setting: float},
        "factor": param(number, "a number", 1.0),
    }
    kind = dataclass(frozen=True)(
        type("Curve", (Method,), {**fields, setting: param(number, "a number", 1.0)})
    )
    kind.name = name
    with pytest.raises(RecipeError, match="is a method and a setting of .*; rename one"):
        register(kind)
    assert name not in REGISTRY
