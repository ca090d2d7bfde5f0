"""Comparison: everything that a validation starts from, opened once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ropeconv
from ropeconv.cli.app import app
from ropeconv.errors import BadSource
from ropeconv.rope.log_n import QueryScaling
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate import comparison

from ..support.baking import apply, make_plan

YARN = Recipe(REGISTRY["yarn"](4.0))


def counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """How often functions that the comparison opens with are called, from wherever."""
    calls: Counter[str] = Counter()
    for name in names:
        original: Callable[..., Any] = getattr(comparison, name)

        def count(*given: Any, original: Callable[..., Any] = original, name: str = name) -> Any:
            calls[name] += 1
            return original(*given)

        for module in (comparison, *(__import__("sys").modules[m] for m in list(__import__("sys").modules))):
            if getattr(module, "__name__", "").startswith("ropeconv") and vars(module).get(name) is original:
                monkeypatch.setattr(module, name, count)
    return calls


def test_one_validate_reads_the_receipt_and_opens_the_source_once(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    import ropeconv.cli.running
    import ropeconv.validate.checkpoint
    import ropeconv.validate.checks.before_forward

    calls = counted(monkeypatch, "read_receipt", "open_source", "inspect_source")
    done = CliRunner().invoke(app, ["validate", str(out), "--against", str(llama), "--tokens", "32"])
    assert done.exit_code == 0, done.output
    assert calls == {"read_receipt": 1, "open_source": 1, "inspect_source": 1}
    assert ropeconv.read_receipt(out).validation is not None


def test_what_it_holds(llama: Path, tmp_path: Path) -> None:
    plan = make_plan(llama, YARN, tmp_path / "out")
    found = ropeconv.Comparison.open(apply(plan), str(llama))
    assert found.schedule.digest == plan.schedule.digest
    assert found.schedule.context == 256
    assert np.array_equal(found.spec.current().inv_freq, plan.before.current().inv_freq)
    assert not found.unchanged
    assert found.scale is None
    assert found.queries == "self_attn.q_proj"
    assert found.rounded_weights("bfloat16") == ()


def test_as_is_changes_nothing(llama: Path, tmp_path: Path) -> None:
    plan = make_plan(llama, Recipe(REGISTRY["as-is"]()), tmp_path / "out")
    assert ropeconv.Comparison.open(apply(plan), str(llama)).unchanged


def test_what_stands_for_log_n_is_what_is_compared(llama: Path, tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["yarn"](4.0), log_n="clamped")
    plan = make_plan(llama, recipe, tmp_path / "out", encoding="ministral3", allow_approximate=True)
    scale = ropeconv.Comparison.open(apply(plan), str(llama)).scale
    assert scale == QueryScaling(1 / np.log(64), 64)


def test_another_source_is_refused(llama: Path, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    with pytest.raises(BadSource, match=r"the recipe gives another schedule; name its source"):
        ropeconv.Comparison.open(out, str(tiny("phi")))


def test_an_output_that_replaces_stored_frequencies_is_compared_with_the_first_source(
    llama: Path, tmp_path: Path
) -> None:
    stored = apply(make_plan(llama, YARN, tmp_path / "stored", encoding="buffers"))
    replaced = apply(make_plan(stored, Recipe(REGISTRY["linear"](4.0)), tmp_path / "replaced", replace=True))
    with pytest.raises(BadSource, match="the local folder .model., by --replace: name that with --against"):
        ropeconv.Comparison.open(replaced, str(stored))
    assert ropeconv.Comparison.open(replaced, str(llama)).schedule.context == 256
