"""Frequencies stored in the checkpoint, with code of their own, against the source patched at run time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ropeconv.encode.checkpoint.encodings.buffers import TENSOR
from ropeconv.errors import BadSource, UnsupportedBake
from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..conftest import Run
from ..support.baking import apply, make_plan, validate
from ..support.models import make

LAYOUTS = ("llama", "mistral", "qwen2", "qwen3")
RECIPES = {
    "clamped": Recipe(METHODS["mixed"](4.0), attention_factor=1.25, log_n="clamped"),
    "full": Recipe(METHODS["yarn"](4.0), log_n="full", log_n_length=48),
    "none": Recipe(METHODS["yarn"](4.0)),
}
NOISE = 5e-5  # of a standard deviation


def measure(source: Path, baked: Path, transformers: str = "") -> dict[str, Any]:
    """What the program beside this file measures, with the installed transformers or one in a folder."""
    schedule = json.loads((baked / "ropeconv.json").read_text())["schedule"]
    wanted = {key: schedule.get(key) for key in ("inv_freq", "attention_factor", "log_n")}
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("stored_rope.py"))]
    environment = {**os.environ, "HF_MODULES_CACHE": str(baked.parent / "modules"), "HF_HUB_OFFLINE": "1"}
    if transformers:
        environment["PYTHONPATH"] = transformers
    command = [*program, str(source), str(baked), json.dumps(wanted)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def confirm(found: dict[str, Any]) -> None:
    """Every claim about the code: one forward, a cache, compiled, saved again, cast."""
    assert found["control"] > 0.5
    for way in ("eager", "sdpa", "stepwise", "compiled", "saved"):
        assert found[way] < NOISE, (way, found)
    assert found["breaks"]["baked"] == found["breaks"]["stock"]
    assert found["kept"]
    assert found["low_precision_is_finite"]
    assert found["saved_code"]
    assert found["generates"]


def calm(model_type: str, folder: Path) -> Path:
    """A tiny checkpoint whose attention is not so sharp that it magnifies float32's rounding."""
    path = make(model_type, folder) / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name in tensors:
        if name.endswith(("q_proj.weight", "k_proj.weight", "q_norm.weight")):
            tensors[name] *= 0.5
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return folder


def baked(source: Path, recipe: Recipe, out: Path) -> Path:
    return apply(make_plan(source, recipe, out, encoding="buffers"))


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path: Path, layout: str, kind: str) -> None:
    source = calm(layout, tmp_path / layout)
    out = baked(source, RECIPES[kind], tmp_path / f"{layout}_{kind}")
    code = (out / "modeling_stored_rope.py").read_text()
    assert len(code.splitlines()) < 100
    assert "import ropeconv" not in code
    assert ("ScaledAttention" in code) == (kind != "none")
    confirm(measure(source, out))


def test_other_frequencies_and_another_rule_are_noticed(tmp_path: Path) -> None:
    source = calm("llama", tmp_path / "llama")
    out = baked(source, RECIPES["clamped"], tmp_path / "tampered")
    config = json.loads((out / "config.json").read_text())
    config["stored_rope"]["log_n"]["length"] = 48
    (out / "config.json").write_text(json.dumps(config))
    assert measure(source, out)["eager"] > 100 * NOISE
    out = baked(source, RECIPES["none"], tmp_path / "altered")
    stored = safetensors.torch.load_file(out / "model-rope.safetensors")
    stored[TENSOR][8] *= 1.01
    safetensors.torch.save_file(stored, out / "model-rope.safetensors", {"format": "pt"})
    assert not validate(out, source).agrees


def test_weights_keep_their_bytes_and_get_an_index(tmp_path: Path) -> None:
    """One file gets another name, since readers prefer model.safetensors to any index; shards keep theirs."""
    source = make("llama", tmp_path / "llama")
    out = baked(source, RECIPES["none"], tmp_path / "one")
    whole = source / "model.safetensors"
    assert (out / "model-00001-of-00001.safetensors").read_bytes() == whole.read_bytes()
    assert not (out / "model.safetensors").exists()
    tensors = safetensors.torch.load_file(whole)
    half = len(tensors) // 2
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    parts = [dict(list(tensors.items())[:half]), dict(list(tensors.items())[half:])]
    for name, part in zip(names, parts, strict=True):
        safetensors.torch.save_file(part, source / name, {"format": "pt"})
    where = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    total = sum(tensor.nbytes for tensor in tensors.values())
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total, "note": "kept"}, "weight_map": where})
    )
    whole.unlink()
    out = baked(source, RECIPES["none"], tmp_path / "two")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": total + 4 * 32, "note": "kept"}
    assert index["weight_map"] == {**where, TENSOR: "model-rope.safetensors"}
    assert all((out / name).read_bytes() == (source / name).read_bytes() for name in names)
    assert validate(out, source).agrees


def test_who_reads_it(tmp_path: Path) -> None:
    source = make("qwen3", tmp_path / "qwen3")
    plan = make_plan(source, RECIPES["none"], encoding="buffers")
    words = {verdict.runtime: verdict.status for verdict in plan.result.verdicts}
    assert words["transformers@5.18"] == "exact"
    assert words["transformers@4.45"] == "refused"
    assert words["transformers@4.48"] == "unsupported"
    assert words["vllm@0.33"] == "unknown"
    assert any("trust_remote_code" in warning for warning in plan.warnings)


def test_log_n_goes_there_by_itself(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "llama")
    assert make_plan(source, RECIPES["clamped"]).result.encoding == "buffers"


def test_refusals(tmp_path: Path) -> None:
    recipe = RECIPES["clamped"]
    with pytest.raises(UnsupportedBake, match="Llama, Mistral, Qwen 2 and Qwen 3 only"):
        make_plan(make("gemma2", tmp_path / "gemma2"), recipe, encoding="buffers")
    source = make("qwen2", tmp_path / "qwen2")
    with pytest.raises(UnsupportedBake, match="config.json alone"):
        make_plan(source / "config.json", recipe, encoding="buffers")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "use_sliding_window": True}))
    with pytest.raises(UnsupportedBake, match="window layers"):
        make_plan(source, recipe, encoding="buffers")
    out = baked(make("llama", tmp_path / "llama"), RECIPES["none"], tmp_path / "out")
    with pytest.raises(BadSource, match="`ropeconv restore` brings its source back"):
        inspect_source(open_source(str(out)))


def test_foreign_code_is_not_run(run: Run, tmp_path: Path) -> None:
    source = make("llama", tmp_path / "llama")
    done = run("apply", source, "--yarn", "4", "--encoding", "buffers", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "within 0 ulp" in done.stdout
    assert "trust_remote_code" in done.stderr
    code = tmp_path / "out" / "modeling_stored_rope.py"
    mark = tmp_path / "was-run"
    code.write_text(code.read_text() + f"\nopen({str(mark)!r}, 'w').close()\n")
    for option, words in (("-q", "is not the file that ropeconv wrote"), ("--ignore-receipt", "--trust-remote-code")):
        refused = run("validate", "out", "--against", source, option)
        assert (refused.returncode, mark.exists()) == (1, False)
        assert words in refused.stderr
    assert run("validate", "out", "--against", source, "--ignore-receipt", "--trust-remote-code").returncode == 0
    assert mark.exists()


def test_frequencies_that_were_not_loaded_are_no_numbers(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    out = baked(make("llama", tmp_path / "llama"), RECIPES["none"], tmp_path / "unfilled")
    config = AutoConfig.from_pretrained(out, trust_remote_code=True)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True, attn_implementation="eager")
    assert model(torch.tensor([[5, 6, 7]])).logits.isnan().any()
