"""Encoders: their hidden states tell a right output from wrong ones, and `inspect` and `validate` say what they are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.engines.transformers import TransformersEngine
from ropeconv.errors import RopeconvError
from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source
from ropeconv.validate.rule.measures import summarise
from ropeconv.validate.rule.states import measure_states
from ropeconv.validate.rule.validation import Validation

from ..faults.wrong_bakes import local, rope
from ..support.baking import apply, make_plan, replaced, stored_as, validate
from ..support.extent import sample
from ..support.in_process import command
from ..support.models import ENCODERS, make

YARN = Recipe(REGISTRY["yarn"](16.0))


def check(out: Path, source: Path, **options: Any) -> Validation:
    return validate(out, source, device="cpu", **{"tokens": 128, **options})


DTYPES = ("float32", "bfloat16")
WRONG = {
    "base": rope(rope_theta=lambda old: old * 1.05),
    "factor": rope(factor=15.5),
    "attention factor": rope(attention_factor=1.25),
    "no method": rope(rope_type="default"),
    "local layers too": local(rope_type="linear", factor=16.0),
}
CASES = [(name, wrong) for name in sorted(ENCODERS) for wrong in list(WRONG)[:4]]


@pytest.mark.parametrize(("model_type", "wrong"), [*sample(CASES, 3), ("modernbert", "local layers too")])
def test_a_wrong_output_disagrees(model_type: str, wrong: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    out = apply(make_plan(tiny(model_type), YARN, tmp_path / "out"))
    WRONG[wrong](out)
    assert check(out, tiny(model_type)).sentence.startswith("Disagrees: relative error ")


@pytest.mark.parametrize(
    ("encoding", "dtype"), sample([(encoding, dtype) for encoding in ("native", "weights") for dtype in DTYPES], 2)
)
def test_a_right_output_agrees_in_every_precision(encoding: str, dtype: str, tmp_path: Path) -> None:
    source = make("modernbert", tmp_path / "source", initializer_range=0.15)
    stored_as(source, dtype)
    result = check(apply(make_plan(source, YARN, tmp_path / "out", encoding=encoding)), source, dtype=dtype)
    assert result.agrees, result.sentence


def test_a_flat_encoder_is_distinguished(tmp_path: Path) -> None:
    """As a class is initialised: attention is all but uniform, and hidden states are those of the words."""
    source = make("eurobert", tmp_path / "source", initializer_range=0.02)
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    assert check(out, source).agrees
    replaced(out / "config.json", '"factor": 16.0', '"factor": 12.0')
    assert not check(out, source).agrees


def test_every_position_is_read_at_once_whatever_the_chunk(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny("modernbert")
    result = check(apply(make_plan(source, YARN, tmp_path / "out")), source, length=256, chunk=100)
    assert result.agrees, result.sentence
    whole = [bucket for bucket in result.buckets if bucket.run == "whole"]
    assert [bucket.last for bucket in whole] == [63, 127, 255]
    assert all(bucket.cosine is not None and bucket.cosine > 0.999999 for bucket in whole)


def test_hidden_states_do_not_depend_on_the_chunk(tiny: Callable[[str], Path]) -> None:
    """An encoder that was read in chunks would see no token after a chunk."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(tiny("eurobert")).eval()
    ids = list(range(5, 45))
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    for chunk in (7, 4096):
        engine = TransformersEngine(model, chunk)
        assert not engine.has_logits
        found = engine.hidden_states(ids, range(len(ids)), range(len(ids)))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    with pytest.raises(RopeconvError, match="EuroBertModel has no logits; compare its hidden states"):
        engine.head(found)


def test_relative_error_and_cosine_by_hand() -> None:
    """(3, 4) against itself turned by a right angle, made twice as long, and moved by 0.05 across."""
    wanted = torch.tensor([[3.0, 4.0]] * 3)
    other = torch.tensor([[-4.0, 3.0], [6.0, 8.0], [3.04, 3.97]])
    found = measure_states(wanted, other)
    assert (2 * found.kl).sqrt().tolist() == pytest.approx([math.sqrt(2.0), 1.0, 0.01], rel=1e-4)
    assert found.cosine.tolist() == pytest.approx([0.0, 1.0, 1 / math.sqrt(1 + 1e-4)], abs=1e-8)
    assert found.max_dlogit.tolist() == pytest.approx([7.0, 4.0, 0.04], rel=1e-4)
    figures = summarise(found)
    assert (figures.top1, figures.top5, figures.loss_reference, figures.loss_other) == (None, None, None, None)
    assert figures.cosine is not None


def test_what_the_commands_say(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny("modernbert")
    assert "reads in both directions" in command(tmp_path, "inspect", source).stdout
    apply(make_plan(source, YARN, tmp_path / "out"))
    given = ("validate", "out", "--against", source)
    done = command(tmp_path, *given, "--report", "page.html", code=0)
    assert "relative error" in done.stdout
    assert "cosine" in done.stdout
    assert "Cosine of hidden states" in (tmp_path / "page.html").read_text()
    data = json.loads(command(tmp_path, *given, "--json", code=0).stdout)
    first = data["buckets"][0]
    assert (first["top1"], first["top5"]) == (None, None)
    assert 0.999 < first["cosine"] <= 1.0000001
    assert data["rule"].startswith("hidden states are compared")


@pytest.mark.parametrize(("model_type", "encoder"), [("llama", False), ("modernbert", True)])
def test_an_encoder_is_told_from_a_language_model(model_type: str, encoder: bool, tiny: Callable[[str], Path]) -> None:
    seen = inspect_source(open_source(str(tiny(model_type))))
    assert (seen.encoder, seen.to_dict()["encoder"]) == (encoder, encoder)
