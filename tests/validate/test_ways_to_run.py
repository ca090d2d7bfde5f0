"""Other ways to run a comparison: a third opinion, several processes, and devices without float64."""

from __future__ import annotations

import json
import os
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

from ..conftest import Run
from ..support.baking import apply, make_plan, validate
from ..support.models import make


def bake(source: Path, out: Path, recipe: Recipe, **options: Any) -> Path:
    return apply(make_plan(source, recipe, out, **options))


@pytest.mark.parametrize("method", ["yarn", "linear", "llama3", "theta"])
@pytest.mark.parametrize("model_type", ["llama", "stablelm", "gemma3_text"])
def test_the_method_of_transformers_itself_agrees(
    model_type: str, method: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    recipe = Recipe(REGISTRY[method](160000.0 if method == "theta" else 16.0), 1024)
    result = validate(
        bake(tiny(model_type), tmp_path / "out", recipe), str(tiny(model_type)), tokens=64, config_reference=True
    )
    assert result.agrees, result.sentence
    assert result.config_reference_kl is not None
    assert result.config_reference_kl < 1e-6


def test_another_opinion_is_heard(tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = bake(tiny("llama"), tmp_path / "out", Recipe(REGISTRY["yarn"](16.0)))
    right = by_config.parameters
    monkeypatch.setattr(by_config, "parameters", lambda *given: right(*given) | {"attention_factor": 1.0})
    result = validate(out, str(tiny("llama")), tokens=64, config_reference=True)
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
def test_what_transformers_has_no_method_for(recipe: Recipe, tiny: Callable[[str], Path]) -> None:
    spec = make_plan(tiny("llama"), Recipe(REGISTRY["yarn"](16.0))).before
    with pytest.raises(UsageError, match="leave --reference config out"):
        by_config.parameters(recipe.schedule(spec), spec)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads that two processes can share, baked with the attention factor in the keys."""
    folder = tmp_path_factory.mktemp("shared")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256, "initializer_range": 0.2}
    make("llama", folder / "source", **heads)
    bake(folder / "source", folder / "out", Recipe(REGISTRY["yarn"](16.0)), encoding="weights")
    return folder


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*start, "-m", "ropeconv", "validate", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)


def test_two_processes_share_a_model(shared: Path, tmp_path: Path) -> None:
    given = ("--against", "source", "--tokens", "64", "--length", "512", "--chunk", "200", "--json")
    done = torchrun(shared, "out", *given)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # of one process, not of both
    assert (result["agrees"], result["device"]) == (True, "cpu x 2")
    alone = validate(shared / "out", str(shared / "source"), tokens=64)
    for ours, theirs in zip(result["buckets"], alone.buckets, strict=False):
        assert ours["control_kl"] == pytest.approx(theirs.control_kl, rel=1e-3)
    path = shared / "out" / "model.safetensors"
    import safetensors.torch

    tensors = safetensors.torch.load_file(path)
    tensors["model.layers.1.self_attn.k_proj.weight"] /= 1.277
    wrong = tmp_path / "wrong"
    subprocess.run(["cp", "-r", str(shared / "out"), str(wrong)], check=True)
    safetensors.torch.save_file(tensors, wrong / "model.safetensors", {"format": "pt"})
    assert torchrun(shared, str(wrong), "--against", "source", "--ignore-receipt", "-q").returncode != 0


def test_heads_that_cannot_be_shared(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    out = bake(tiny("llama"), tmp_path / "out", Recipe(REGISTRY["yarn"](16.0)))
    done = torchrun(tmp_path, str(out), "--against", str(tiny("llama")), "-q")
    assert done.returncode != 0
    assert "1 num_key_value_heads cannot be shared by 2 processes" in done.stderr
    assert torchrun(tmp_path, "out", "--against", "source", "--device-map", "auto").returncode != 0


class NoFloat64(TorchDispatchMode):
    """A device such as mps, which has no float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise AssertionError(f"{func} makes float64")
        return out


def test_devices_without_float64(tiny: Callable[[str], Path]) -> None:
    """Nothing before the last figures, which are made on the host, needs it."""
    spec = make_plan(tiny("llama"), Recipe(REGISTRY["yarn"](16.0))).before
    schedule = Recipe(REGISTRY["yarn"](16.0)).schedule(spec)
    model = load_stock(tiny("llama"), "cpu")
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


def test_options_that_do_not_go_together(run: Run, llama: Path) -> None:
    for given, said in (
        (("out", "--reference", "mine"), "'mine' is not one of 'patched', 'config'"),
        (("out.gguf", "--reference", "config"), "are for checkpoints"),
        (("out", "--server", "http://localhost:1", "--reference", "config"), "without --server"),
    ):
        done = run("validate", *given, "--against", "model")
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
