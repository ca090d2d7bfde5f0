"""Methods and forms at numbers that can be computed on paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import DynamicNtk, Interpolated, Llama3, LongRope, Plain, Yarn, base_inv_freq
from ropeconv.rope.methods import REGISTRY

from .small_head import BASE, THETA, TRAINED, made


@pytest.mark.parametrize(
    ("method", "values", "expected"),
    [
        ("linear", (4.0,), [value / 4 for value in BASE]),
        ("ntk-old", (4.0,), [40000.0 ** (-i / 4) for i in range(4)]),
        ("ntk", (4.0,), [(10000 * 4 ** (8 / 6)) ** (-i / 4) for i in range(4)]),
        ("ntk-fixed", (4.0,), [40000.0 ** (-i / 4) / 4**0.25 for i in range(4)]),
        ("mixed", (4.0, 0.5), [BASE[i] * 4 ** -(((i + 1) / 4) ** 0.5) for i in range(4)]),
        ("mixed", (4.0, 0.0), [value / 4 for value in BASE]),
        ("mixed", (4.0, 1.0), [BASE[i] * 4 ** (-(i + 1) / 4) for i in range(4)]),
        ("theta", (16.0,), [1.0, 0.5, 0.25, 0.125]),
    ],
)
def test_frequencies(method: str, values: tuple[float, ...], expected: list[float]) -> None:
    found = made(method, *values)
    np.testing.assert_allclose(found.inv_freq, expected, rtol=1e-13)
    assert found.attention_factor == 1.0
    assert found.original_context == TRAINED


@pytest.mark.parametrize("method", ["linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn", "llama3"])
@pytest.mark.parametrize("factor", [2.5, 4.0, "16k"])
def test_a_factor_multiplies_the_context(method: str, factor: float | str) -> None:
    reached = {2.5: 10240, 4.0: 16384, "16k": 16384}[factor]
    assert (made(method, factor).context, made(method, factor).original_context) == (reached, TRAINED)


def test_mixed_takes_its_exponent_from_the_text() -> None:
    assert REGISTRY["mixed"](4.0).mixed_exponent == 0.625  # type: ignore[attr-defined]
    np.testing.assert_array_equal(made("mixed", 4.0).inv_freq, made("mixed", 4.0, 0.625).inv_freq)


@pytest.mark.parametrize(("at", "factor"), [(1024, 1.0), (4096, 1.0), (6144, 1.5), (16384, 4.0)])
def test_dynamic_linear_is_the_length_over_the_trained_one_and_at_least_1(at: int, factor: float) -> None:
    found = made("dynamic", "linear:4", at)
    np.testing.assert_allclose(found.inv_freq, [value / factor for value in BASE], rtol=1e-13)
    assert (found.context, found.original_context, found.attention_factor) == (at, TRAINED, 1.0)


@pytest.mark.parametrize(("at", "growth"), [(1024, 1.0), (4096, 1.0), (6144, 2.0), (8192, 3.0), (16384, 7.0)])
def test_dynamic_ntk_has_the_base_of_transformers_and_at_least_the_models_own(at: int, growth: float) -> None:
    """With S = 2, S n / L - (S - 1) is 2 at 1.5 L, 3 at 2 L and 7 at 4 L; the last is beyond S and still goes."""
    found = made("dynamic", "ntk:2", at)
    assert found.form == Plain(found.form.theta)  # type: ignore[union-attr]
    assert found.form.theta == pytest.approx(10000 * growth ** (8 / 6), rel=1e-13)  # type: ignore[union-attr]
    assert found.context == at


def test_dynamic_yarn_has_the_attention_factor_of_its_length() -> None:
    assert made("dynamic", "yarn:4", 8192).attention_factor == pytest.approx(0.1 * math.log(2) + 1)
    assert made("dynamic", "yarn:4", 2048).attention_factor == 1.0


def test_dynamic_stops_at_its_factor() -> None:
    assert made("dynamic", "linear:4", 16384).context == 16384
    with pytest.raises(RecipeError, match="beyond 4 x 4096; choose up to 16384"):
        made("dynamic", "linear:4", 16385)
    with pytest.raises(RecipeError, match="say with --at"):
        made("dynamic", "linear:4")


@pytest.mark.parametrize("kind", ["linear", "linear:", "linear:0.5", "cubic:2", "ntk:-1", "linear:4x"])
def test_dynamic_takes_a_method_and_a_factor_from_1(kind: str) -> None:
    with pytest.raises(RecipeError, match="METHOD:S"):
        REGISTRY["dynamic"](kind)


def test_dynamic_takes_a_factor_of_1_and_fractions() -> None:
    assert REGISTRY["dynamic"]("linear:1").parts() == ("linear", 1.0)  # type: ignore[attr-defined]
    assert REGISTRY["dynamic"]("by-parts:2.5").parts() == ("by-parts", 2.5)  # type: ignore[attr-defined]


def test_dynamic_says_how_it_goes_further() -> None:
    assert REGISTRY["dynamic"]("yarn:2", 8192).longer(10 * TRAINED, TRAINED) == "--dynamic yarn:10 --at 40k"
    assert REGISTRY["dynamic"]("yarn:16", 8192).longer(10 * TRAINED, TRAINED) == "--dynamic yarn:16 --at 40k"
    assert REGISTRY["dynamic"]("ntk:2", 8192).longer(10 * TRAINED, TRAINED) == "--dynamic ntk:2 --at 40k"


def test_dynamic_sees_its_length_over_the_declared_context() -> None:
    method = REGISTRY["dynamic"]("linear:4", 8192)
    assert method.relative(4096, 1024).length == 2048
    assert method.relative(1 << 20, 1).length == 1
    assert REGISTRY["dynamic"]("linear:4").relative(4096, 1024).length is None


def test_by_parts_and_llama3_ramp_over_turns() -> None:
    """L = 2 pi 4: the pairs of theta = 16 turn 4, 2, 1 and 0.5 times; from 1 to 4 the ramp is 1, 1/3, 0 and 0."""
    form = Llama3(16.0, 8.0, 8 * math.pi, 1.0, 4.0)  # type: ignore[arg-type]
    keep = np.array([1.0, 1 / 3, 0.0, 0.0])
    np.testing.assert_allclose(form.inv_freq(8), np.array([1, 0.5, 0.25, 0.125]) * (keep + (1 - keep) / 8), atol=1e-15)


def test_llama3_without_a_ramp_keeps_what_turns_at_least_that_often() -> None:
    form = Llama3(16.0, 8.0, 8 * math.pi, 1.0, 1.0)  # type: ignore[arg-type]
    np.testing.assert_allclose(form.inv_freq(8), [1, 0.5, 0.25, 0.125 / 8])


def test_yarns_ramp_over_pairs() -> None:
    """dim(beta) = r ln(L / 2 pi beta) / (2 ln theta): with theta = e and L = 2 pi e^b it is r/2 b, less ln beta."""
    length = 2 * math.pi * math.e
    form = Yarn(math.e, 4.0, length, math.exp(0.75), math.exp(0.25), truncate=False)  # type: ignore[arg-type]
    np.testing.assert_allclose(form.ramp(8), [0, 0, 0.5, 1], atol=1e-12)  # from pair 1 to pair 3
    np.testing.assert_allclose(form.inv_freq(8), base_inv_freq(math.e, 8) * [1, 1, 0.625, 0.25])


def test_yarn_rounds_the_ends_of_its_ramp_outward_and_clamps_them() -> None:
    """Ends at 1.25 and 2.5 become 1 and 3; ends beyond the pairs are 0 and r - 1; equal ends are 0.001 apart."""

    def ramp(fast: float, slow: float, truncate: bool = True) -> list[float]:
        length, betas = 2 * math.pi * math.e, (math.exp(1 - fast / 4), math.exp(1 - slow / 4))
        form = Yarn(math.e, 4.0, length, *betas, truncate)  # type: ignore[arg-type]
        return [float(value) for value in form.ramp(8)]

    assert ramp(1.25, 2.5) == pytest.approx([0, 0, 0.5, 1])
    assert ramp(1.25, 2.5, truncate=False) == pytest.approx([0, 0, 0.6, 1])
    assert ramp(-3, 4.0, truncate=False) == pytest.approx([0, 0.25, 0.5, 0.75])
    assert ramp(0.0, 20.0, truncate=False) == pytest.approx([0, 1 / 7, 2 / 7, 3 / 7])
    assert ramp(2.0, 2.0, truncate=False) == pytest.approx([0, 0, 0, 1], abs=1e-9)


@pytest.mark.parametrize(
    ("form", "scaled"),
    [
        (Plain(THETA), False), (Interpolated(THETA, 1.0), False), (Interpolated(THETA, 2.0), True),
        (Yarn(THETA, 1.0, 64), False), (Yarn(THETA, 2.0, 64), True), (Llama3(THETA, 1.0, 64), False),
        (DynamicNtk(THETA, 1.0, 64), True), (LongRope(THETA, (1.0,), (1.0,), 64), True),
    ],
)  # fmt: skip
def test_what_counts_as_scaled(form: Any, scaled: bool) -> None:
    assert form.scaled is scaled


def test_the_defaults_of_forms() -> None:
    assert (Yarn(THETA, 4.0, 64).beta_fast, Yarn(THETA, 4.0, 64).beta_slow, Yarn(THETA, 4.0, 64).truncate) == (
        32,
        1,
        True,
    )
    assert (Llama3(THETA, 4.0, 64).low_freq_factor, Llama3(THETA, 4.0, 64).high_freq_factor) == (1, 4)
    assert Interpolated(THETA).factor == 1
