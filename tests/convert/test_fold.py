"""Attention factors folded into weights, of every family, against the same model whose rotary
modules carry them.

In float64, and with the attention factor 2, whose products are exact: what differs then is the
place of the factor alone, and that within 1e-9 of the logits' deviation, while the factor itself
changes them by more than a tenth of it.
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ropeconv.convert import fold as arithmetic
from ropeconv.engines.transformers.engine import has_decoder
from ropeconv.engines.transformers.patch import patch
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.safetensors import read_header
from ropeconv.models.registry import by_model_type

from ..support.baking import apply, make_plan, recipe_of, stored_as
from ..support.extent import sample
from ..support.families import REPRESENTATIVES
from ..support.llamacpp import lively
from ..support.models import CANCELS, FAMILIES, TRAINED, auto_class, make

RECIPE = recipe_of("theta", 2e6, context=256, attention_factor=2.0)
LENGTH = 2 * TRAINED
FIXED = {name for name in FAMILIES if by_model_type()[name].weights.fixed}
FOLDING = [name for name in FAMILIES if name not in CANCELS | FIXED]
EVERY_DAY = [name for name in FOLDING if name in REPRESENTATIVES]


def logits(folder: Path, plan: Any, attention_factor: float | None = None) -> torch.Tensor:
    """Logits in float64 of a model that is patched to a plan's schedule, with its attention factor
    or another.

    Of an encoder, its hidden states.
    """
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    loads = auto_class(json.loads((folder / "config.json").read_text())["model_type"])
    model = loads.from_pretrained(folder, dtype=torch.float64, **eager).eval()
    schedule = plan.schedule
    if attention_factor is not None:
        schedule = replace(schedule, attention_factor=attention_factor, softmax_scale=1.0)
    patch(model, schedule, plan.before.mla)
    ids = torch.randint(4, 300, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    decoded = {"decoder_input_ids": ids} if has_decoder(model) else {"use_cache": False}
    with torch.no_grad():
        output = model(input_ids=ids, **decoded)
    return getattr(output, "logits", output[0])[0].double()


def tiny(model_type: str, folder: Path) -> Path:
    return lively(make(model_type, folder / "source"))


OTHER_SIDES = (
    "llama",
    "qwen3",
    "phi3",
    "gpt_neox",
    "falcon",
    "gemma3_text",
    "gemma3n_text",
    "deepseek_v3",
)
CELLS = [
    *(
        (name, "k")
        for name in [
            *sample(EVERY_DAY, 3),
            *sample([name for name in FOLDING if name not in EVERY_DAY], 2),
        ]
    ),
    *sample(list(product(OTHER_SIDES, ("q", "qk"))), 1),
]


@pytest.mark.parametrize(("model_type", "side"), CELLS)
def test_the_factor_in_the_weights_does_what_it_does_in_the_rotary_module(
    tmp_path: Path, model_type: str, side: str
) -> None:
    source = tiny(model_type, tmp_path)
    plan = make_plan(source, RECIPE, tmp_path / "out", encoding="weights", fold_into=side)
    folder = apply(plan)
    assert plan.result.in_config.attention_factor == 1
    reference = logits(source, plan)
    folded = logits(folder, plan, attention_factor=1.0)
    # (1 + w) a - 1 is not exact
    bound = 1e-5 if any(scaling.plus_one for scaling in plan.result.fold.scalings) else 1e-9
    assert (reference - folded).abs().max() < bound * reference.std()
    assert (
        reference - logits(source, plan, attention_factor=1.0)
    ).abs().max() > 0.1 * reference.std()


def test_only_the_ranges_that_the_plan_names_change(tmp_path: Path) -> None:
    """The header, the order, the metadata and every other byte are as they were."""
    source = tiny("stablelm", tmp_path)
    plan = make_plan(source, RECIPE, tmp_path / "out", encoding="weights")
    folder = apply(plan)
    before, after = (np.fromfile(path / "model.safetensors", np.uint8) for path in (source, folder))
    header = read_header(source / "model.safetensors")
    allowed = np.zeros(len(before), bool)
    for scaling in plan.result.fold.scalings:
        first = header.data_start + header.tensors[scaling.tensor].start
        for start, stop in scaling.spans:
            allowed[first + 4 * start : first + 4 * stop] = True
    assert len(before) == len(after)
    assert not ((before != after) & ~allowed).any()
    assert 0 < allowed.sum() < len(before) / 10
    receipt = json.loads((folder / "ropeconv.json").read_text())
    assert receipt["fold"]["fold_into"] == "k"
    assert [file["action"] for file in receipt["files"] if file["name"] == "model.safetensors"] == [
        "patch"
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_rounded_to_nearest_and_the_plan_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(arithmetic, "PIECE", 1000)  # so that a tensor has many pieces
    source = make("qwen2", tmp_path / "half")
    half = stored_as(source, dtype)
    recipe = recipe_of("linear", 4.0, attention_factor=1.2)
    plan = make_plan(source, recipe, tmp_path / "out", encoding="weights")
    statuses = {verdict.status for verdict in plan.result.verdicts}
    assert "rounded" in statuses
    assert "exact" not in statuses
    name = "model.layers.0.self_attn.k_proj.weight"
    weight = load_file(apply(plan) / "model.safetensors")[name]
    assert torch.equal(weight, (half[name].float() * 1.44).to(getattr(torch, dtype)))


@pytest.mark.parametrize("model_type", sample(sorted(CANCELS), 2))
def test_where_an_attention_factor_has_no_effect_it_is_refused(
    tmp_path: Path, model_type: str
) -> None:
    with pytest.raises(UnsupportedBake):
        make_plan(make(model_type, tmp_path / "source"), RECIPE, encoding="weights")


@pytest.mark.parametrize("model_type", sample(sorted(FIXED), 2))
def test_where_no_factor_can_go_into_the_weights_the_reason_is_said(
    tmp_path: Path, model_type: str
) -> None:
    with pytest.raises(UnsupportedBake, match=by_model_type()[model_type].weights.fixed):
        make_plan(make(model_type, tmp_path / "source"), RECIPE, encoding="weights")
