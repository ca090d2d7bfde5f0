"""Comparison: everything that a validation starts from, opened once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ropeconv
from ropeconv.errors import BadSource
from ropeconv.rope.log_n import QueryScaling
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.models import make

YARN = Recipe(REGISTRY["yarn"](4.0))


def test_it_holds_the_schedule_of_the_plan_and_the_rope_of_the_source(llama: Path, tmp_path: Path) -> None:
    plan = make_plan(llama, YARN, tmp_path / "out")
    found = ropeconv.Comparison.open(apply(plan), str(llama))
    assert (found.schedule.digest, found.schedule.context) == (plan.schedule.digest, 256)
    assert np.array_equal(found.spec.current().inv_freq, plan.before.current().inv_freq)
    assert (found.unchanged, found.scale, found.queries) == (False, None, "self_attn.q_proj")


def test_what_stands_for_log_n_is_what_is_compared(llama: Path, tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["yarn"](4.0), log_n="clamped")
    plan = make_plan(llama, recipe, tmp_path / "out", encoding="ministral3", allow_approximate=True)
    scale = ropeconv.Comparison.open(apply(plan), str(llama)).scale
    assert scale == QueryScaling(1 / np.log(64), 64)


def test_another_source_is_refused(llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    other = make("llama", tmp_path / "other", rope_theta=20000.0)
    with pytest.raises(BadSource, match=r"the recipe gives another schedule; name its source"):
        ropeconv.Comparison.open(out, str(other))
    with pytest.raises(BadSource, match="is not an output of ropeconv"):
        ropeconv.Comparison.open(other, str(other))


def test_an_output_that_replaces_stored_frequencies_is_compared_with_the_first_source(
    llama: Path, tmp_path: Path
) -> None:
    stored = apply(make_plan(llama, YARN, tmp_path / "stored", encoding="buffers"))
    replaced = apply(make_plan(stored, Recipe(REGISTRY["linear"](4.0)), tmp_path / "replaced", replace=True))
    with pytest.raises(BadSource, match="the local folder .model., by --replace: name that with --against"):
        ropeconv.Comparison.open(replaced, str(stored))
    assert ropeconv.Comparison.open(replaced, str(llama)).schedule.context == 256
