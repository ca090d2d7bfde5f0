"""Encoders: their hidden states tell a right output from wrong ones, and `inspect` and `validate` say what they are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
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

from ..conftest import Run
from ..support.baking import apply, make_plan, validate
from ..support.extent import sample
from ..support.models import ENCODERS, make

YARN = Recipe(REGISTRY["yarn"](16.0))
GLOBAL, LOCAL = "full_attention", "sliding_attention"


def check(out: Path, source: Path, **options: Any) -> Validation:
    return validate(out, source, device="cpu", **{"tokens": 128, **options})


def each_rope(config: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
    """Changes every RoPE dictionary of the extended layers, in both schemas."""
    new = config["rope_parameters"]
    for part in (config.get("rope_scaling"), new.get(GLOBAL, new)):
        if part:
            change(part)


def base(config: dict[str, Any]) -> None:
    each_rope(config, lambda part: part.update(rope_theta=part.get("rope_theta", config["rope_theta"]) * 1.05))


def factor(config: dict[str, Any]) -> None:
    each_rope(config, lambda part: part.update(factor=15.5))


def attention_factor(config: dict[str, Any]) -> None:
    each_rope(config, lambda part: part.update(attention_factor=1.25))


def unscaled(config: dict[str, Any]) -> None:
    """As if no layer were extended."""
    before = config["rope_parameters"].get(GLOBAL, config["rope_parameters"])
    kept = {key: before[key] for key in ("rope_theta", "partial_rotary_factor") if key in before}
    plain = {"rope_type": "default", **kept}
    local = config["rope_parameters"].get(LOCAL)
    config |= {"rope_parameters": {GLOBAL: plain, LOCAL: local} if local else plain}
    config |= {"rope_scaling": None} if "rope_scaling" in config else {}


def local_layers_too(config: dict[str, Any]) -> None:
    new = config["rope_parameters"]
    new[LOCAL] = {**new[GLOBAL], "rope_theta": new[LOCAL]["rope_theta"]}


WRONG = [(name, edit) for name in sorted(ENCODERS) for edit in (base, factor, attention_factor, unscaled)]


@pytest.mark.parametrize(("model_type", "edit"), [*sample(WRONG, 6), ("modernbert", local_layers_too)])
def test_a_wrong_output_disagrees(
    model_type: str, edit: Callable[[dict[str, Any]], None], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    out = apply(make_plan(tiny(model_type), YARN, tmp_path / "out"))
    path = out / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    assert config != json.loads(path.read_text())
    path.write_text(json.dumps(config))
    result = check(out, tiny(model_type))
    assert not result.agrees
    assert result.sentence.startswith("Disagrees: relative error ")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("folded", [False, True])
def test_a_right_output_agrees_in_every_precision(dtype: str, folded: bool, tmp_path: Path) -> None:
    source = make("modernbert", tmp_path / "source", initializer_range=0.15)
    path = source / "model.safetensors"
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    out = apply(make_plan(source, YARN, tmp_path / "out", **({"encoding": "weights"} if folded else {})))
    result = check(out, source, dtype=dtype)
    assert result.agrees, result.sentence


def test_a_flat_encoder_is_distinguished(tmp_path: Path) -> None:
    """As a class is initialised: attention is all but uniform, and hidden states are those of the words."""
    source = make("eurobert", tmp_path / "source", initializer_range=0.02)
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    assert check(out, source).agrees
    text = (out / "config.json").read_text()
    (out / "config.json").write_text(text.replace('"factor": 16.0', '"factor": 12.0'))
    assert not check(out, source).agrees


def test_every_position_is_read_at_once_whatever_the_chunk(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny("modernbert")
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    result = check(out, source, length=256, chunk=100)
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
    errors = [math.sqrt(2.0), 1.0, 0.01]
    assert (2 * found.kl).sqrt().tolist() == pytest.approx(errors, rel=1e-4)
    assert found.cosine.tolist() == pytest.approx([0.0, 1.0, 1 / math.sqrt(1 + 1e-4)], abs=1e-8)
    assert found.max_dlogit.tolist() == pytest.approx([7.0, 4.0, 0.04], rel=1e-4)
    figures = summarise(found)
    assert (figures.top1, figures.top5, figures.loss_reference, figures.loss_other) == (None, None, None, None)
    assert figures.cosine is not None


def test_what_the_commands_say(run: Run, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny("modernbert")
    assert "reads in both directions" in run("inspect", source).stdout
    assert json.loads(run("inspect", source, "--json").stdout)["encoder"] is True
    apply(make_plan(source, YARN, tmp_path / "out"))
    done = run("validate", tmp_path / "out", "--against", source, "--report", "page.html")
    assert done.returncode == 0, done.stderr
    assert "relative error" in done.stdout
    assert "cosine" in done.stdout
    page = next(tmp_path.rglob("page.html"), None) or Path(done.args[-1])
    assert "Cosine of hidden states" in page.read_text()
    data = json.loads(run("validate", tmp_path / "out", "--against", source, "--json").stdout)
    first = data["buckets"][0]
    assert (first["top1"], first["top5"]) == (None, None)
    assert 0.999 < first["cosine"] <= 1.0000001
    assert data["rule"].startswith("hidden states are compared")


def test_a_language_model_is_no_encoder(tiny: Callable[[str], Path]) -> None:
    seen = inspect_source(open_source(str(tiny("llama"))))
    assert (seen.encoder, seen.to_dict()["encoder"]) == (False, False)
