"""Checkpoints with dual_chunk_attention_config, which some runtimes compute in place of a method: Qwen2.5-1M."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake import Target, apply, make_plan
from ropeconv.errors import UnsupportedBake, UsageError
from ropeconv.families.schema import DUAL_CHUNK
from ropeconv.inspection import inspect_source
from ropeconv.receipts import read_receipt
from ropeconv.receipts.commands import commands
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes import find
from ropeconv.sources import open_source

from ..support.models import TRAINED

YARN = Recipe(REGISTRY["yarn"](4.0))
CHUNKS = {"chunk_size": 32, "local_size": 8, "original_max_position_embeddings": TRAINED // 2}


@pytest.fixture
def chunked(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny Qwen 2 as Qwen2.5-1M is published."""
    folder = tmp_path / "chunked"
    shutil.copytree(tiny("qwen2"), folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), DUAL_CHUNK: CHUNKS}))
    return folder


def planned(folder: Path, **options: Any) -> Any:
    return make_plan(open_source(str(folder)), YARN, Target(**options))


@pytest.mark.parametrize("choice", [None, "keep"])
@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
def test_a_runtime_that_would_ignore_the_method_is_refused_with_the_option(
    chunked: Path, runtime: str, choice: str | None
) -> None:
    with pytest.raises(UnsupportedBake, match=f"{DUAL_CHUNK}.*; pass --dual-chunk drop"):
        planned(chunked, runtimes=(runtime,), dual_chunk=choice)
    assert planned(chunked, runtimes=(runtime,), dual_chunk="drop").result.status_of(find(runtime)[-1]) == "exact"


def test_it_is_said_until_it_is_chosen(chunked: Path) -> None:
    seen = inspect_source(open_source(str(chunked)))
    message = next(problem.message for problem in seen.problems if problem.code == "dual-chunk")
    assert all(name in message for name in ("ignored by transformers", "vLLM", "SGLang"))
    assert seen.spec.original_context == TRAINED // 2
    said = {choice: planned(chunked, dual_chunk=choice) for choice in (None, "keep", "drop")}
    assert [message in plan.warnings for plan in said.values()] == [True, False, False]
    assert [DUAL_CHUNK in plan.result.config for plan in said.values()] == [True, True, False]
    assert said["keep"].result.status_of(find("vllm")[-1]) == "refused"


def test_without_the_key_the_option_is_refused(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match=f"--dual-chunk drop is about {DUAL_CHUNK}, which .* does not have"):
        planned(tiny("qwen2"), dual_chunk="drop")


def test_the_receipt_says_how_it_was_made(chunked: Path, tmp_path: Path) -> None:
    receipt = read_receipt(apply(planned(chunked, dual_chunk="drop", out=tmp_path / "out"), check=False))
    assert receipt.target is not None
    assert receipt.target.dual_chunk == "drop"
    assert "--dual-chunk drop" in commands(receipt)[0]


def test_transformers_ignores_the_key(chunked: Path, tiny: Callable[[str], Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(3, 51)[None]
    with torch.no_grad():
        logits = [AutoModelForCausalLM.from_pretrained(one)(tokens).logits for one in (chunked, tiny("qwen2"))]
    assert torch.equal(*logits)
