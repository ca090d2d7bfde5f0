"""Layers that predict further tokens (MTP), which checkpoints of some families have and transformers drops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from ropeconv.formats.gguf import GgufFile
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe

from ..support.extent import sample
from ..support.gguf_files import contents
from ..support.llamacpp import bake, beyond, checkpoint, of_llamacpp, of_transformers

YARN = Recipe(METHODS["yarn"](4.0), attention_factor=1.0)
QWEN = {
    "eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm",
}  # fmt: skip


def predicting(model_type: str, folder: Path) -> Path:
    """A checkpoint with a further layer like the last, as its publisher names it."""
    source = checkpoint(model_type, folder)
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    width, last = tensors["model.embed_tokens.weight"].shape[1], "model.layers.1."
    added = {name.removeprefix(last): tensor.clone() for name, tensor in tensors.items() if name.startswith(last)}
    parts = {"eh_proj": torch.randn(width, 2 * width), "shared_head.norm": torch.rand(width)}
    parts |= {name: torch.rand(width) for name in ("enorm", "hnorm")}
    if model_type.startswith("qwen"):
        tensors |= {f"mtp.layers.0.{name}": tensor for name, tensor in added.items()}
        tensors |= {f"mtp.{QWEN[name]}.weight": tensor for name, tensor in parts.items()}
    else:
        parts |= {"embed_tokens": tensors["model.embed_tokens.weight"] + 1}
        named = {f"{name}.weight": tensor for name, tensor in parts.items()}
        tensors |= {f"model.layers.2.{name}": tensor for name, tensor in {**added, **named}.items()}
    safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    return source


@pytest.mark.parametrize("model_type", ["glm4_moe", *sample(["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"], 1)])
def test_they_are_kept_where_llamacpp_has_them(tmp_path: Path, model_type: str) -> None:
    source, out = predicting(model_type, tmp_path / "source"), tmp_path / "out.gguf"
    plan = bake(source, YARN, out)
    file, made = GgufFile.open(out), contents(out)
    arch = file.get("general.architecture")
    assert (file.get(f"{arch}.block_count"), file.get(f"{arch}.nextn_predict_layers")) == (3, 1)
    stored = safetensors.torch.load_file(source / "model.safetensors")
    qwen = model_type.startswith("qwen")
    norm = stored["mtp.pre_fc_norm_hidden.weight" if qwen else "model.layers.2.hnorm.weight"].numpy()
    assert made["blk.2.nextn.hnorm.weight"] == (norm + np.float32(qwen)).tobytes()  # which Qwen stores as weight - 1
    assert made["blk.2.attn_k.weight"] == made["blk.1.attn_k.weight"] != made["blk.2.nextn.eh_proj.weight"]
    reference, stock = of_transformers(source, plan), of_llamacpp(out)
    assert max(one.kl_mean for one in beyond(reference, stock)) < 1e-5
    assert min(one.kl_mean for one in beyond(of_transformers(source, None), stock)) > 1e-3
    assert not any("MTP" in warning for warning in plan.warnings)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "ernie4_5_moe"])
def test_they_are_left_out_where_it_has_not_and_the_plan_says_so(tmp_path: Path, model_type: str) -> None:
    made, plain = tmp_path / "out.gguf", tmp_path / "plain.gguf"
    for source, out in ((predicting(model_type, tmp_path / "source"), made),
                        (checkpoint(model_type, tmp_path / "plain"), plain)):  # fmt: skip
        plan = bake(source, YARN, out)
        assert any("further tokens (MTP) are left out" in warning for warning in plan.warnings) is (out == made)
    assert contents(made) == contents(plain)
    assert GgufFile.open(made).get(f"{GgufFile.open(made).get('general.architecture')}.block_count") == 2
