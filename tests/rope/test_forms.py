"""Closed forms against the installed transformers' own functions, at the edges of their numbers."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest

from ropeconv.families import by_model_type
from ropeconv.rope.forms import Llama3, Vector, base_inv_freq
from ropeconv.rope.proportional import Proportional, recognise, share
from ropeconv.runtimes.read_config import read_spec

from ..conftest import CONFIGS

SCOUT = "meta-llama--Llama-4-Scout-17B-16E-Instruct.first"
REVISIONS = {
    "first": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "second": {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
}


def of_transformers(head_dim: int, **rope: Any) -> Vector:
    """What the installed transformers computes from a rope_parameters of a Llama, float64 [head_dim / 2]."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=1 << 20, rope_parameters=rope)
    found, attention_factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    assert attention_factor == 1
    return found.double().numpy()


@pytest.mark.parametrize("revision", REVISIONS)
def test_both_revisions_of_scout(revision: str) -> None:
    numbers = {"rope_type": "llama3", "original_max_position_embeddings": 8192, **REVISIONS[revision]}
    config = json.loads((CONFIGS / f"{SCOUT}.json").read_text())
    config["text_config"]["rope_scaling"] = numbers
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = read_spec(config, by_model_type()["llama4"])
        found = spec.current().inv_freq
    np.testing.assert_allclose(found, of_transformers(128, rope_theta=5e5, **numbers), rtol=4e-6)
    divisors = base_inv_freq(5e5, 128) / found
    between = (divisors > 1 + 1e-9) & (divisors < numbers["factor"] - 1e-9)
    assert between.any() == (revision == "first")


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.5, 2.5), (4.0, 1.0)])
@pytest.mark.parametrize("original", [64, 8192])
def test_llama3_without_a_ramp_is_a_step(low: float, high: float, original: int) -> None:
    """Also where the two factors are the wrong way round, which transformers warns about and computes."""
    form = Llama3(5e5, 16.0, original, low, high)
    rope = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}
    wanted = of_transformers(64, rope_type="llama3", rope_theta=5e5, factor=16.0, **rope)
    np.testing.assert_allclose(form.inv_freq(64), wanted, rtol=4e-6)
    turns = original * base_inv_freq(5e5, 64) / math.tau
    np.testing.assert_allclose(base_inv_freq(5e5, 64) / form.inv_freq(64), np.where(turns < low, 16.0, 1.0))


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_every_share_of_a_head_is_that_of_transformers(head_dim: int, factor: float) -> None:
    """Also where 2k / head_dim times head_dim is a little below 2k, which transformers cuts to a pair fewer."""
    for rotating in range(head_dim // 2):
        form = Proportional(1e4, factor, share(rotating, head_dim))
        rope = {"partial_rotary_factor": form.partial_rotary_factor, "factor": factor}
        wanted = of_transformers(head_dim, rope_type="proportional", rope_theta=1e4, **rope)
        assert np.count_nonzero(wanted) == rotating
        np.testing.assert_allclose(form.inv_freq(head_dim), wanted, rtol=3e-7)


def prope(theta: float, pairs: int, rotating: int, factor: float = 1.0) -> Vector:
    vector = np.array([theta ** (-i / pairs) / factor for i in range(pairs)])
    vector[rotating:] = 0
    return vector


def test_vectors_that_are_proportional() -> None:
    assert recognise(prope(1e4, 32, 8), 1e4) == Proportional(1e4, 1.0, 0.25)
    assert recognise(prope(1e4, 32, 8, 4.0), 1e4) == Proportional(1e4, 4.0, 0.25)
    assert recognise(prope(3e6, 32, 8), 1e4) == Proportional(3e6, 1.0, 0.25)
    assert recognise(np.zeros(32), 1e4) == Proportional(1e4, 1.0, 0.0)
    single = prope(1e4, 32, 8).astype(np.float32).astype(np.float64)
    assert recognise(single, 1e4) == Proportional(1e4, 1.0, 0.25)


@pytest.mark.parametrize("off", [-1.1e-7, -6e-8, 6e-8, 1.1e-7])
def test_a_first_pair_that_is_1_but_for_rounding_says_that_the_factor_is_1(off: float) -> None:
    vector = prope(1e4, 32, 8)
    vector[0] += off
    assert recognise(vector, 1e4) == Proportional(1e4, 1.0, 0.25)


def test_a_factor_is_that_of_the_first_pair_whatever_the_second_is() -> None:
    """With a base of 1 every pair is 1 / factor; a second pair of 1 or of 0 says nothing of it."""
    assert recognise(np.array([0.5, 0.5, 0.0]), 1.0) == Proportional(1.0, 2.0, share(2, 6))
    assert recognise(np.array([4.0, 1.0, 0.0]), 1e4) == Proportional(pytest.approx(64.0), 0.25, share(2, 6))  # type: ignore[arg-type]
    assert recognise(np.array([0.25, 0.0]), 1e4) == Proportional(1e4, 4.0, 0.5)


@pytest.mark.parametrize(("theta", "rotating"), [(2000.125, 8), (2000.125, 24), (999.875, 8), (1234.567, 24)])
def test_a_base_of_three_decimals_is_found_in_a_float32_vector_as_it_was(theta: float, rotating: int) -> None:
    """The quotient of the first and the last pair is off by up to 1e-7 of it, which is not taken for digits."""
    single = prope(theta, 32, rotating).astype(np.float32).astype(np.float64)
    assert single[0] / single[rotating - 1] != theta ** ((rotating - 1) / 32)
    assert recognise(single, 1e4) == Proportional(theta, 1.0, rotating / 32)


def test_vectors_that_are_not() -> None:
    whole, hole, bent = prope(1e4, 32, 32), prope(1e4, 32, 8), prope(1e4, 32, 8)
    hole[3] = 0
    bent[3] *= 1 + 1e-6
    first = prope(1e4, 32, 32)
    first[0] = 0
    assert [recognise(vector, 1e4) for vector in (whole, hole, bent, first)] == [None] * 4
