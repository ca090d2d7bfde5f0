"""Draft models for speculative decoding have the config of a model and other tensors: they are refused."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ropeconv.errors import BadSource

from ..support.baking import inspected, replaced

ATTENTION = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight")
EAGLE = [f"layers.0.{name}" for name in ATTENTION] + ["embed_tokens.weight", "fc.weight"]
EAGLE_3 = [f"midlayer.{name}" for name in ATTENTION] + ["fc.weight", "d2t", "t2d", "norm.weight", "lm_head.weight"]
MEDUSA = ["0.0.linear.weight", "0.1.weight", "1.0.linear.weight"]
MTP = [f"model.layers.61.{name}" for name in (*ATTENTION, "eh_proj.weight", "enorm.weight", "hnorm.weight")]
QWEN_MTP = [f"mtp.layers.0.{name}" for name in ATTENTION] + ["mtp.fc.weight", "mtp.norm.weight"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (EAGLE, "is an EAGLE head for speculative decoding"), (EAGLE_3, "is an EAGLE-3 head for speculative decoding"),
        *((names, "none of its 2 layers has self_attn.q_proj") for names in (MEDUSA, MTP, QWEN_MTP)),
    ],
    ids=["EAGLE", "EAGLE-3", "Medusa", "MTP", "Qwen's MTP"],
)  # fmt: skip
def test_draft_models_are_refused_by_their_tensors(llama: Path, names: list[str], message: str) -> None:
    save_file({name: np.ones((2, 2), np.float32) for name in names}, llama / "model.safetensors")
    with pytest.raises(BadSource, match=f"{message}.*(extend it with its target|extend that model)"):
        inspected(llama)


@pytest.mark.parametrize(
    ("name", "kind"),
    {
        "LlamaForCausalLMEagle3": "an EAGLE-3 head", "Eagle3LlamaForCausalLM": "an EAGLE-3 head",
        "EagleLlamaForCausalLM": "an EAGLE head", "MedusaModel": "a set of Medusa heads",
        "DeepSeekMTPModel": "the MTP layers of a checkpoint", "DFlashDraftModel": "a DFlash draft",
        "MLPSpeculatorPreTrainedModel": "an MLP speculator",
    }.items(),
)  # fmt: skip
def test_a_config_alone_is_refused_by_its_class(llama: Path, name: str, kind: str) -> None:
    replaced(llama / "config.json", "LlamaForCausalLM", name)
    with pytest.raises(BadSource, match=f"is {kind} for speculative decoding, not a whole model; "):
        inspected(llama / "config.json")


@pytest.mark.parametrize(
    ("rename", "more"),
    [
        (lambda name: name, []),
        (lambda name: name.removeprefix("model."), []),  # saved by AutoModel
        (lambda name: f"language_model.{name}", []),  # inside LLaVA
        (lambda name: re.sub(r"_proj\.weight$", "_proj.qweight", name), []),  # GPTQ
        (lambda name: name, MTP + QWEN_MTP),  # layers that predict further tokens, beside a model
    ],
)
def test_models_are_not(llama: Path, rename: Callable[[str], str], more: list[str]) -> None:
    tensors = {rename(name): value for name, value in load_file(llama / "model.safetensors").items()}
    tensors |= {name: np.ones((2, 2), np.float32) for name in more}
    save_file(tensors, llama / "model.safetensors")
    assert inspected(llama).name == "llama"
