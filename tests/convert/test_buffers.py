"""Frequencies stored in the checkpoint, with code of their own, against the source patched at run
time.
"""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ropeconv.convert.encodings.buffers import TENSOR
from ropeconv.errors import BadSource
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, changed_weights, inspected, make_plan, recipe_of, validate
from ..support.corruptions import put
from ..support.extent import sample
from ..support.models import in_two_files, make

LAYOUTS = ("llama", "mistral", "qwen2", "qwen3")
RECIPES = {
    "clamped": recipe_of("mixed", 4.0, attention_factor=1.25, log_n="clamped"),
    "full": recipe_of("yarn", 4.0, log_n="full", log_n_length=48),
    "none": recipe_of("yarn", 4.0),
}
NOISE = 5e-5  # of a standard deviation


def agrees(source: Path, baked: Path, transformers: str = "") -> None:
    """Runs the program beside this file, with the installed transformers or one in a folder."""
    schedule = json.loads((baked / "ropeconv.json").read_text())["schedule"]
    schedule_json = json.dumps(
        {key: schedule.get(key) for key in ("inv_freq", "attention_factor", "log_n")}
    )
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("stored_rope.py"))]
    environment = {
        **os.environ,
        "HF_MODULES_CACHE": str(baked.parent / "modules"),
        "HF_HUB_OFFLINE": "1",
    }
    environment |= {"PYTHONPATH": transformers} if transformers else {}
    command = [*program, str(source), str(baked), schedule_json]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    difference, control = json.loads(done.stdout.splitlines()[-1])
    assert difference < NOISE
    assert control > 0.5


def calm(model_type: str, folder: Path) -> Path:
    """A tiny checkpoint whose attention is not so sharp that it magnifies float32's rounding."""
    make(model_type, folder)
    for part in ("q_proj.weight", "k_proj.weight", "q_norm.weight"):
        changed_weights(folder, part, 0.5)
    return folder


def baked(source: Path, recipe: Recipe, out: Path) -> Path:
    return apply(make_plan(source, recipe, out, encoding="buffers"))


@pytest.mark.parametrize(("layout", "kind"), sample(list(product(LAYOUTS, RECIPES)), 1))
def test_every_way_to_run_the_stored_code_gives_the_same_logits(
    tmp_path: Path, layout: str, kind: str
) -> None:
    """With SDPA, token by token through the cache, compiled, and saved and loaded again."""
    from transformers import AutoModelForCausalLM

    def loaded(folder: Path, attention: str = "eager") -> Any:
        given = {"trust_remote_code": True, "attn_implementation": attention}
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **given).eval()

    out = baked(calm(layout, tmp_path / layout), RECIPES[kind], tmp_path / f"{layout}_{kind}_ways")
    ids = torch.randint(4, 300, (1, 160), generator=torch.Generator().manual_seed(0))
    model = loaded(out)
    model.save_pretrained(tmp_path / "saved")
    with torch.no_grad():
        reference = model(input_ids=ids, use_cache=False).logits[0]
        prompt = model(input_ids=ids[:, :140], use_cache=True)
        steps = [prompt.logits[0]]
        cache = prompt.past_key_values
        for at in range(140, 160):
            steps.append(
                model(input_ids=ids[:, at : at + 1], past_key_values=cache, use_cache=True).logits[
                    0
                ]
            )
        others = (
            loaded(out, "sdpa"),
            loaded(tmp_path / "saved"),
            torch.compile(model, backend="eager"),
        )
        outputs = [
            torch.cat(steps),
            *(other(input_ids=ids, use_cache=False).logits[0] for other in others),
        ]
    assert max((output - reference).abs().max() for output in outputs) < NOISE * reference.std()


@pytest.mark.parametrize(("layout", "kind"), sample(list(product(LAYOUTS, RECIPES)), 1))
def test_the_stored_code_agrees_with_the_patched_source(
    tmp_path: Path, layout: str, kind: str
) -> None:
    source = calm(layout, tmp_path / layout)
    out = baked(source, RECIPES[kind], tmp_path / f"{layout}_{kind}_again")
    agrees(source, out)
    assert validate(out, source, tokens=128).agrees


@pytest.mark.parametrize("kind", ["clamped", "none"])
def test_another_rule_and_other_frequencies_are_noticed(tmp_path: Path, kind: str) -> None:
    source = calm("llama", tmp_path / "llama")
    out = baked(source, RECIPES[kind], tmp_path / f"altered_{kind}")
    if kind == "clamped":
        put("config.json", "stored_rope.log_n.length", 48)(out)
    else:
        stored = safetensors.torch.load_file(out / "model-rope.safetensors")
        stored[TENSOR][8] *= 1.01
        safetensors.torch.save_file(stored, out / "model-rope.safetensors", {"format": "pt"})
    assert not validate(out, source, tokens=256).agrees


@pytest.mark.parametrize("files", [1, 2])
def test_weights_keep_their_bytes_and_the_index_gets_one_tensor_more(
    llama: Path, tmp_path: Path, files: int
) -> None:
    """One file gets another name, since readers prefer model.safetensors to any index."""
    whole = (llama / "model.safetensors").read_bytes()
    where = in_two_files(llama, note="kept") if files == 2 else {}
    out = baked(llama, RECIPES["none"], tmp_path / f"in_{files}")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].items() >= {**where, TENSOR: "model-rope.safetensors"}.items()
    assert not (out / "model.safetensors").exists()
    if files == 1:
        assert (out / "model-00001-of-00001.safetensors").read_bytes() == whole
        return
    total = json.loads((llama / "model.safetensors.index.json").read_text())["metadata"][
        "total_size"
    ]
    assert index["metadata"] == {"total_size": total + 4 * 32, "note": "kept"}
    assert all((out / name).read_bytes() == (llama / name).read_bytes() for name in where.values())


def test_an_output_is_no_source_until_it_is_restored(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="`ropeconv restore`"):
        inspected(baked(llama, RECIPES["none"], tmp_path / "out"))
