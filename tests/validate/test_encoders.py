"""Encoders: their hidden states tell a right output from wrong ones, and `inspect` and `validate` say what they are."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.validate.validation import Validation, measure_states

from ..faults.wrong_bakes import local, rope
from ..support.baking import YARN_16, apply, make_plan, stored_as, validate
from ..support.extent import sample
from ..support.in_process import command
from ..support.models import ENCODERS, make


def check(out: Path, source: Path, **options: Any) -> Validation:
    return validate(out, source, device="cpu", **{"tokens": 128, **options})


WRONG = {
    "base": rope(rope_theta=lambda old: old * 1.05),
    "attention factor": rope(attention_factor=1.25),
    "no method": rope(rope_type="default"),
    "local layers too": local(rope_type="linear", factor=16.0),
}
CASES = [(name, wrong) for name in sorted(ENCODERS) for wrong in list(WRONG)[:3]]


@pytest.mark.parametrize(("model_type", "wrong"), [*sample(CASES, 1), ("modernbert", "local layers too")])
def test_a_wrong_output_disagrees(model_type: str, wrong: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    out = apply(make_plan(tiny(model_type), YARN_16, tmp_path / "out"))
    WRONG[wrong](out)
    assert check(out, tiny(model_type)).sentence.startswith("FAIL: relative error ")


@pytest.mark.parametrize(("encoding", "dtype"), [("native", "float32"), ("weights", "bfloat16")])
def test_a_right_output_agrees_in_every_precision(encoding: str, dtype: str, tmp_path: Path) -> None:
    source = make("modernbert", tmp_path / "source", initializer_range=0.15)
    stored_as(source, dtype)
    result = check(apply(make_plan(source, YARN_16, tmp_path / "out", encoding=encoding)), source, dtype=dtype)
    assert result.agrees, result.sentence


def test_relative_error_and_cosine_by_hand() -> None:
    """(3, 4) against itself turned by a right angle, made twice as long, and moved by 0.05 across."""
    reference = torch.tensor([[3.0, 4.0]] * 3)
    other = torch.tensor([[-4.0, 3.0], [6.0, 8.0], [3.04, 3.97]])
    result = measure_states(reference, other)
    assert (2 * result.kl).sqrt().tolist() == pytest.approx([math.sqrt(2.0), 1.0, 0.01], rel=1e-4)
    assert result.cosine.tolist() == pytest.approx([0.0, 1.0, 1 / math.sqrt(1 + 1e-4)], abs=1e-8)
    assert result.max_dlogit.tolist() == pytest.approx([7.0, 4.0, 0.04], rel=1e-4)


def test_what_the_commands_say(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny("modernbert")
    apply(make_plan(source, YARN_16, tmp_path / "out"))
    given = ("validate", "out", "--against", source)
    done = command(tmp_path, *given, "--report", "page.html", code=0)
    assert "relative error" in done.stdout
    assert "cosine" in done.stdout
    assert "Similarity of hidden states" in (tmp_path / "page.html").read_text()
    data = json.loads(command(tmp_path, *given, "--json", code=0).stdout)
    first = data["buckets"][0]
    assert 0.999 < first["cosine"] <= 1.0000001
    assert data["rule"].startswith("hidden states are compared")
