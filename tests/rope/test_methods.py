"""Every method against numbers made another way: mpmath, hand computation, published checkpoints."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Plain
from ropeconv.rope.laws import theta_for_length
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

from ..conftest import DATA

REFERENCE = json.loads((DATA / "schedules.json").read_text())
CASES = [(case, scale) for case in REFERENCE["cases"] for scale in case["scales"]]
IDS = [f"d{case['d']}-b{case['base']}-L{case['L']}-s{scale}" for case, scale in CASES]
NAMED = {
    "pi": ("linear", {}),
    "ntk_old": ("ntk-old", {}),
    "ntk_aware": ("ntk", {}),
    "ntk_fixed": ("ntk-fixed", {}),
    "byparts_paper": ("by-parts", {}),
    "byparts_ref": ("yarn", {}),
    "byparts_ref_notrunc": ("yarn", {"truncate": False}),
}


def bare(head_dim: int, theta: float, context: int, rotary_dim: int | None = None) -> RopeSpec:
    return RopeSpec(head_dim, rotary_dim or head_dim, Plain(float(theta)), context, context)


def schedule(spec: RopeSpec, method: str, *values: object, **more: object) -> Schedule:
    return Recipe(REGISTRY[method](*values, **more)).schedule(spec)


def agrees(found: Schedule, expected: dict) -> None:
    """Sum, sum of logarithms, and every entry that the reference lists."""
    np.testing.assert_allclose(found.inv_freq.sum(), expected["sum"], rtol=1e-13)
    np.testing.assert_allclose(np.log(found.inv_freq).sum(), expected["sum_log"], rtol=1e-13)
    if "inv_freq" in expected:
        np.testing.assert_allclose(found.inv_freq, expected["inv_freq"], rtol=1e-13)
    for pair, value in expected.get("at", {}).items():
        np.testing.assert_allclose(found.inv_freq[int(pair)], value, rtol=1e-13)


@pytest.mark.parametrize(("case", "scale"), CASES, ids=IDS)
@pytest.mark.parametrize("name", NAMED)
def test_agrees_with_the_reference(case: dict, scale: str, name: str) -> None:
    method, more = NAMED[name]
    found = schedule(bare(case["d"], case["base"], case["L"]), method, float(scale), **more)
    agrees(found, case["scales"][scale][name])
    assert found.context == case["L"] * int(scale)


@pytest.mark.parametrize(("case", "scale"), CASES, ids=IDS)
def test_mixed_agrees_with_the_reference_at_every_exponent(case: dict, scale: str) -> None:
    for exponent, expected in case["scales"][scale]["ntk_mixed"].items():
        agrees(schedule(bare(case["d"], case["base"], case["L"]), "mixed", float(scale), float(exponent)), expected)


@pytest.mark.parametrize(("case", "scale"), CASES, ids=IDS)
def test_dynamic_ntk_freezes_the_base_of_transformers(case: dict, scale: str) -> None:
    at = case["L"] * int(scale)
    found = schedule(bare(case["d"], case["base"], case["L"]), "dynamic", f"ntk:{scale}", at)
    assert found.form is not None
    assert found.form.theta == pytest.approx(case["scales"][scale]["hf_dynamic_base_at_Ls_factor_s"], rel=1e-13)


@pytest.mark.parametrize("row", REFERENCE["attention_factor"], ids=lambda row: f"s{row['s']}-a{row['a']}")
def test_temperature(row: dict) -> None:
    recipe = Recipe(REGISTRY["yarn"](float(row["s"])), temperature_slope=row["a"])
    assert recipe.schedule(bare(128, 1e4, 4096)).attention_factor == pytest.approx(row["value"], rel=1e-14)


def test_mscale_pair_of_deepseek() -> None:
    row = REFERENCE["mscale_ratio_deepseek"]
    spec = RopeSpec(64, 64, Plain(1e4), 4096, 4096, mla=True)
    found = schedule(spec, "yarn", float(row["factor"]), mscale=row["mscale"], mscale_all_dim=row["mscale_all_dim"])
    assert found.attention_factor == pytest.approx(row["hf_attention_factor"])
    assert found.softmax_scale == pytest.approx((0.1 * 0.707 * math.log(40) + 1) ** 2)


@pytest.mark.parametrize("row", REFERENCE["gradient"], ids=lambda row: str(row["L_new"]))
def test_theta_law(row: dict) -> None:
    assert theta_for_length(row["theta"], row["L"], row["L_new"]) == pytest.approx(row["value"], rel=1e-13)


def test_theta_for_gives_the_published_bases() -> None:
    llama3 = bare(128, 500000, 8192)
    published = REFERENCE["gradient_published"]
    shipped = {262144: published["Llama-3-8B-Instruct-262k config (current)"], 1048576: published["1048k config"]}
    for target, theta in shipped.items():
        found = schedule(llama3, "theta-for", target)
        assert found.form == Plain(theta)
        assert found.context == target


def test_piecewise_is_method_2_of_the_paper() -> None:
    found = schedule(bare(128, 1e4, 4096), "piecewise", "8@44")
    np.testing.assert_allclose(found.inv_freq, REFERENCE["table4"]["method2_inv_freq"], rtol=1e-13)


def test_the_two_ramps_are_different_functions() -> None:
    spec = bare(128, 1e4, 4096)
    paper, runtimes = (schedule(spec, name, 32.0).inv_freq for name in ("by-parts", "yarn"))
    assert np.max(np.abs(runtimes / paper - 1)) > 2.9


def test_yarn_16_on_llama_2_by_hand() -> None:
    """The published Yarn-Llama-2-7b-64k: ramp from pair 20 to pair 46, attention factor 0.1 ln 16 + 1."""
    found = schedule(bare(128, 1e4, 4096), "yarn", 16.0)
    assert found.attention_factor == pytest.approx(1.2772588722239782, rel=1e-15)
    assert found.inv_freq[20] == pytest.approx(10000 ** (-40 / 128), rel=1e-14)
    assert found.inv_freq[33] == pytest.approx(10000 ** (-66 / 128) * (0.5 + 0.5 / 16), rel=1e-14)
    assert found.inv_freq[46] == pytest.approx(10000 ** (-92 / 128) / 16, rel=1e-14)


def test_linear_is_division_and_theta_only_the_base() -> None:
    spec = bare(8, 16, 64)
    assert schedule(spec, "linear", 2.0).inv_freq.tolist() == [0.5, 0.25, 0.125, 0.0625]
    assert schedule(spec, "theta", 256.0).inv_freq.tolist() == [1.0, 0.25, 0.0625, 0.015625]


@pytest.mark.parametrize("name", ["linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn", "llama3"])
@given(theta=st.floats(100, 1e8), context=st.sampled_from([512, 4096, 32768]), rotary=st.sampled_from([16, 64, 128]))
def test_factor_1_changes_nothing(name: str, theta: float, context: int, rotary: int) -> None:
    spec = bare(rotary, theta, context)
    found = schedule(spec, name, 1.0)
    np.testing.assert_allclose(found.inv_freq, spec.form.inv_freq(rotary), rtol=1e-12)
    assert found.attention_factor == 1


@pytest.mark.parametrize("name", ["linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn", "llama3"])
@given(factor=st.floats(1, 64), theta=st.floats(1e3, 1e7))
def test_frequencies_fall_and_never_rise_above_the_unscaled(name: str, factor: float, theta: float) -> None:
    spec = bare(64, theta, 4096)
    found = schedule(spec, name, factor).inv_freq
    assert (np.diff(found) < 0).all()
    assert (found <= spec.form.inv_freq(64) * (1 + 1e-12)).all()


@pytest.mark.parametrize("bad", [0, -1.0, 0.5, math.nan, math.inf, "4.0", None, True])
@pytest.mark.parametrize("name", ["linear", "ntk", "mixed", "yarn", "by-parts", "llama3"])
def test_factors_that_are_none(name: str, bad: object) -> None:
    with pytest.raises(RecipeError, match="factor must be a number of at least 1"):
        REGISTRY[name](bad)


def test_lists_of_the_wrong_length() -> None:
    with pytest.raises(RecipeError, match=r"3 numbers and this model rotates 32 pairs"):
        schedule(bare(64, 1e4, 4096), "longrope", (1.0, 2.0, 3.0))


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_is_described_and_comes_back_from_its_recipe(name: str) -> None:
    values = {
        "theta-for": (8192,), "theta-bound": (8192,), "dynamic": ("ntk:2", 8192), "piecewise": ("4@8",), "as-is": (),
        "longrope": ((1.0, 2.0),), "inv-freq": ((1.0, 0.5),),
    }  # fmt: skip
    method = REGISTRY[name](*values.get(name, (4.0,)))
    assert method.summary
    assert method.__doc__
    recipe = Recipe(method) if name == "as-is" else Recipe(method, attention_factor=1.1)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_digest_changes_with_what_changes_a_logit() -> None:
    spec = bare(64, 1e4, 4096)
    plain = schedule(spec, "yarn", 4.0)
    hot = Recipe(REGISTRY["yarn"](4.0), attention_factor=1.2).schedule(spec)
    logn = Recipe(REGISTRY["yarn"](4.0), log_n="clamped").schedule(spec)
    longer = Recipe(REGISTRY["yarn"](4.0), context=99999).schedule(spec)
    assert len({plain.digest, hot.digest, logn.digest}) == 3
    assert longer.digest == plain.digest


def test_methods_are_said_to_work_untuned_as_far_as_somebody_reported() -> None:
    """Peng et al. 2023 for the parts, bloc97 and Su 2023 for NTK, Ding et al. 2024; the others are for training."""
    reported = {"ntk": 4, "ntk-old": 4, "by-parts": 4, "yarn": 4, "ntk-fixed": 8, "mixed": 8, "longrope": 8}
    assert {name: kind.max_untuned_factor for name, kind in REGISTRY.items()} == dict.fromkeys(REGISTRY, 1) | reported
    for kind in REGISTRY.values():
        if " times" in kind.finetuning_note:
            assert f"{kind.max_untuned_factor:g} times" in kind.finetuning_note
