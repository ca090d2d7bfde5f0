"""GGUF files become checkpoints again: the same tensors, a config that gives the same logits, the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer

from ropeconv.errors import UnsupportedBake
from ropeconv.families import by_model_type
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..extent import sample
from ..llamacpp import EXPORTED, bake, checkpoint, of_transformers

AS_IS = Recipe(REGISTRY["as-is"]())


def goes_back(model_type: str) -> bool:
    rules = by_model_type()[model_type].gguf
    return rules is not None and bool(rules.config)


BACK = [model_type for model_type in EXPORTED if goes_back(model_type)]


def round_trip(model_type: str, folder: Path, **options: Any) -> tuple[Path, Path]:
    """A checkpoint, and what it becomes by way of GGUF."""
    source = checkpoint(model_type, folder / "source")
    bake(source, AS_IS, folder / "m.gguf", **options)
    bake(folder / "m.gguf", AS_IS, folder / "back", to="safetensors")
    return source, folder / "back"


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in safetensors.torch.load_file(path).items()
    }


@pytest.mark.parametrize("model_type", sample(BACK, 8))
def test_the_way_back_is_the_checkpoint(model_type: str, tmp_path: Path) -> None:
    source, back = round_trip(model_type, tmp_path)
    before, after = tensors(source), tensors(back)
    assert before.keys() - after.keys() <= {"lm_head.weight"}
    rounded = "gemma" in model_type  # GGUF stores the norms plus one
    different = [name for name, tensor in after.items() if not torch.equal(tensor, before[name])]
    assert all(rounded and "norm" in name for name in different)
    assert all((after[name] - before[name]).abs().max() < 2.0**-22 for name in different)
    torch.testing.assert_close(
        of_transformers(back, None), of_transformers(source, None), rtol=0, atol=1e-4 if rounded else 0
    )
    text = "Hello world, 123\n  and some more: näive"
    assert Tokenizer.from_file(str(back / "tokenizer.json")).encode(text).ids == (
        Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids
    )


def test_another_setting_would_be_noticed(tmp_path: Path) -> None:
    source, back = round_trip("llama", tmp_path)
    config = json.loads((back / "config.json").read_text())
    (back / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert not torch.equal(of_transformers(source, None), of_transformers(back, None))


def test_quantised_weights_are_what_the_file_has(tmp_path: Path) -> None:
    source, back = round_trip("llama", tmp_path, outtype="q8_0")
    before, after = tensors(source), tensors(back)
    name = "model.layers.0.self_attn.q_proj.weight"
    step = before[name].abs().amax() / 127
    assert 0 < (before[name] - after[name]).abs().max() <= step
    assert after[name].dtype == torch.float32


@pytest.mark.parametrize("model_type", sample([name for name in EXPORTED if not goes_back(name)], 4))
def test_what_is_not_known_to_go_back_is_refused(model_type: str, tmp_path: Path) -> None:
    source = checkpoint(model_type, tmp_path / "source")
    bake(source, AS_IS, tmp_path / "m.gguf")
    with pytest.raises(UnsupportedBake, match="take the checkpoint that"):
        bake(tmp_path / "m.gguf", AS_IS, tmp_path / "back", to="safetensors")
    assert not (tmp_path / "back").exists()
