"""Other ways to run a comparison: a third opinion, several processes, and devices without float64."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.engines.transformers import engine as by_config
from ropeconv.errors import UsageError

from ..support.baking import YARN_16, apply, changed_weights, make_plan, recipe_of, validate
from ..support.extent import sample
from ..support.in_process import command
from ..support.models import make


@pytest.mark.parametrize("method", sample(["yarn", "linear", "llama3", "theta"], 1))
@pytest.mark.parametrize("model_type", sample(["llama", "stablelm", "gemma3_text"], 1))
def test_the_method_of_transformers_itself_agrees(
    model_type: str, method: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    recipe = recipe_of(method, 160000.0 if method == "theta" else 16.0, context=1024)
    out = apply(make_plan(tiny(model_type), recipe, tmp_path / "out"))
    result = validate(out, tiny(model_type), tokens=64, config_reference=True)
    assert result.agrees, result.sentence
    assert result.config_reference_kl is not None
    assert result.config_reference_kl < 1e-6


def test_another_opinion_is_heard(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = by_config.parameters
    monkeypatch.setattr(by_config, "parameters", lambda *given: right(*given) | {"attention_factor": 1.0})
    result = validate(apply(make_plan(llama, YARN_16, tmp_path / "out")), llama, tokens=64, config_reference=True)
    assert not result.agrees
    assert "in its config does not agree with the reference" in result.sentence


def test_what_transformers_has_no_method_for(llama: Path) -> None:
    spec = make_plan(llama, YARN_16).before
    for recipe in (recipe_of("mixed", 16.0), recipe_of("yarn", 16.0, log_n="full")):
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
    out = apply(make_plan(source, YARN_16, tmp_path / "out", encoding="weights"))
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
    apply(make_plan(llama, YARN_16, tmp_path / "out"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = command(tmp_path, "validate", "out", "--against", "model", "-q", code=1)
    assert "1 num_key_value_heads cannot be shared by 2 processes" in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("out.gguf", "--layer-by-layer"), "is for checkpoints"),
        (("out", "--reference", "mine"), "'mine' is not one of 'patched', 'config'"),
        (("out.gguf", "--reference", "config"), "are for checkpoints"),
        (("out", "--server", "http://localhost:1", "--reference", "config"), "without --server"),
    ],
)
def test_options_that_do_not_go_together(given: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in command(tmp_path, "validate", *given, "--against", "model", code=2).stderr
