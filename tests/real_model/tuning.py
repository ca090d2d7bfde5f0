"""Frequencies for a real model beyond its trained context: more than an hour on two cores, for `scripts/test --all`."""

from __future__ import annotations

from pathlib import Path

import pytest

import ropeconv
from ropeconv.evaluate.result import decided
from ropeconv.rope.methods.vectors import LongRopeMethod
from ropeconv.rope.recipe import Recipe
from ropeconv.tune import Tuned
from scripts.benchmarks.tune import tune_real
from scripts.real_model import RealModel

from ..support.baking import apply, make_plan, validate

TRAINED, CONTEXT = 8192, 10_240


@pytest.fixture(scope="module")
def tuned(real: RealModel, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tune_real(real, tmp_path_factory.mktemp("tuned"))


def found(tuned: Tuned) -> Recipe:
    """What the search found, whatever held-out text says of it."""
    return Recipe(LongRopeMethod(tuple(tuned.divisors)), context=CONTEXT, attention_factor=tuned.attention_factor)


def test_held_out_text_decides(tuned: Tuned) -> None:
    rows = {row.name: row for row in tuned.rows}
    assert rows["linear 1.25"].total.value > 0.1 + rows[tuned.best_formula].total.value
    assert tuned.searched < -0.005, "on its own windows"
    total = rows["tuned factors"].total
    assert total.difference is not None
    assert total.error is not None
    assert tuned.better == (total.difference < 0 and decided(total.difference, total.error))
    assert tuned.recipe == rows["tuned factors" if tuned.better else tuned.best_formula].recipe
    assert (tuned.trained, tuned.context) == (TRAINED, CONTEXT)


def test_transformers_computes_the_list_from_a_config(tuned: Tuned, real: RealModel, tmp_path: Path) -> None:
    plan = make_plan(real.checkpoint, found(tuned), tmp_path / "baked", encoding="factors")
    baked = apply(plan, link=True, fsync=False)
    result = validate(baked, real.checkpoint, tokens=64)
    assert result.agrees, result.sentence
    assert max(bucket.last for bucket in result.buckets) > 1.2 * TRAINED


def test_llama_cpp_computes_the_list_from_a_gguf_file(tuned: Tuned, real: RealModel, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    baked = apply(make_plan(real.gguf, found(tuned), tmp_path / "tuned.gguf"))
    result = ropeconv.validate_gguf(ropeconv.Comparison.open(baked, str(real.gguf)), ropeconv.Settings(tokens=CONTEXT))
    assert result.agrees, result.sentence
