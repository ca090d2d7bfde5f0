"""Other ways to run a comparison: a third opinion, several processes, and devices without float64."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ropeconv.engines.transformers import config_method as by_config
from ropeconv.engines.transformers.backbone import hidden_states, logits
from ropeconv.engines.transformers.load import load_stock
from ropeconv.engines.transformers.patch import patch, scale_queries
from ropeconv.errors import UsageError
from ropeconv.rope.log_n import LogN
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.rule.measures import measure

from ..support.baking import apply, changed_weights, make_plan, validate
from ..support.extent import sample
from ..support.in_process import command
from ..support.models import make

YARN = Recipe(REGISTRY["yarn"](16.0))


@pytest.mark.parametrize("method", sample(["yarn", "linear", "llama3", "theta"], 2))
@pytest.mark.parametrize("model_type", sample(["llama", "stablelm", "gemma3_text"], 1))
def test_the_method_of_transformers_itself_agrees(
    model_type: str, method: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    recipe = Recipe(REGISTRY[method](160000.0 if method == "theta" else 16.0), 1024)
    out = apply(make_plan(tiny(model_type), recipe, tmp_path / "out"))
    result = validate(out, tiny(model_type), tokens=64, config_reference=True)
    assert result.agrees, result.sentence
    assert result.config_reference_kl is not None
    assert result.config_reference_kl < 1e-6


def test_another_opinion_is_heard(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = by_config.parameters
    monkeypatch.setattr(by_config, "parameters", lambda *given: right(*given) | {"attention_factor": 1.0})
    result = validate(apply(make_plan(llama, YARN, tmp_path / "out")), llama, tokens=64, config_reference=True)
    assert not result.agrees
    assert "in its config does not agree with the reference" in result.sentence


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(REGISTRY["mixed"](16.0)),
        Recipe(REGISTRY["linear"](16.0), attention_factor=1.2),
        Recipe(REGISTRY["yarn"](16.0), log_n="full"),
    ],
    ids=["frequencies", "attention_factor", "log-n"],
)
def test_what_transformers_has_no_method_for(recipe: Recipe, llama: Path) -> None:
    spec = make_plan(llama, YARN).before
    with pytest.raises(UsageError, match="leave --reference config out"):
        by_config.parameters(recipe.schedule(spec), spec)


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    given = [*start, "-m", "ropeconv", "validate", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(given, capture_output=True, text=True, cwd=folder, env=env, check=False)


@pytest.mark.nightly
def test_two_processes_share_a_model(tmp_path: Path) -> None:
    """Heads that two processes can share, baked with the attention factor in the keys."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256, "initializer_range": 0.2}
    source = make("llama", tmp_path / "source", **heads)
    out = apply(make_plan(source, YARN, tmp_path / "out", encoding="weights"))
    given = ("--against", "source", "--tokens", "64", "--length", "512", "--chunk", "200", "--json")
    done = torchrun(tmp_path, "out", *given)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # of one process, not of both
    assert (result["agrees"], result["device"]) == (True, "cpu x 2")
    alone = validate(out, source, tokens=64)
    for ours, theirs in zip(result["buckets"], alone.buckets, strict=False):
        assert ours["control_kl"] == pytest.approx(theirs.control_kl, rel=1e-3)
    changed_weights(shutil.copytree(out, tmp_path / "wrong"), "layers.1.self_attn.k_proj", 1 / 1.277)
    assert torchrun(tmp_path, "wrong", "--against", "source", "--ignore-receipt", "-q").returncode != 0


def test_heads_that_cannot_be_shared(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(make_plan(llama, YARN, tmp_path / "out"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = command(tmp_path, "validate", "out", "--against", "model", "-q", code=1)
    assert "1 num_key_value_heads cannot be shared by 2 processes" in done.stderr


class NoFloat64(TorchDispatchMode):
    """A device such as mps, which has no float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise AssertionError(f"{func} makes float64")
        return out


def test_devices_without_float64(llama: Path) -> None:
    """Nothing before the last figures, which are made on the host, needs it."""
    spec = make_plan(llama, YARN).before
    schedule, model = YARN.schedule(spec), load_stock(llama, "cpu")
    with NoFloat64():
        patch(model, schedule, spec)
        undo = scale_queries(model, LogN("full", 64), "q_proj")
        read = hidden_states(model, list(range(96)), list(range(96)), [0, 50, 95], 40)
        made = logits(model, read)
        undo()
    with NoFloat64(), pytest.raises(AssertionError, match="makes float64"):
        measure(made.double(), made)
    found = measure(made, made + 1e-3 * torch.randn(made.shape))
    assert found.kl.dtype == torch.float64
    assert (found.kl > 0).all()


@pytest.mark.parametrize(
    ("given", "world", "said"),
    [
        (("out", "--reference", "mine"), "1", "'mine' is not one of 'patched', 'config'"),
        (("out.gguf", "--reference", "config"), "1", "are for checkpoints"),
        (("out", "--server", "http://localhost:1", "--reference", "config"), "1", "without --server"),
        (("out", "--device-map", "auto"), "2", "torchrun is for checkpoints, without --server and --device-map"),
    ],
)
def test_options_that_do_not_go_together(
    given: tuple[str, ...], world: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    assert said in command(tmp_path, "validate", *given, "--against", "model", code=2).stderr
