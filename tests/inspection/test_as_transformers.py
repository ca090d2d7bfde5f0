"""The RoPE of every published config: transformers' own rotary module is the judge of what a model is."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.inspection import inspect_source
from ropeconv.sources import open_source

from .test_layers import CONFIGS, MORE, PUBLISHED, text_config

pytest.importorskip("torch")
DOES_NOT_LOAD = ("mistralai--Ministral-3-3B-2512",)
JUDGED = [path for path in PUBLISHED if text_config(path) is not None and path.stem not in DOES_NOT_LOAD]


def rotary_module(config: Any) -> Any:
    """The rotary embedding of a text config's own model file."""
    modeling = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    names = [name for name in vars(modeling) if name.endswith("RotaryEmbedding") and "Vision" not in name]
    return getattr(modeling, min(names, key=len))(config)


def computed(path: Path) -> tuple[np.ndarray, float]:
    """inv_freq of the layers that an extension changes, at the declared length, and the attention factor."""
    found = text_config(path)
    assert found is not None
    module = rotary_module(found[1])
    if not hasattr(module, "inv_freq"):  # a set per layer type
        return module.full_attention_inv_freq.numpy(), module.full_attention_attention_scaling
    if getattr(module, "rope_type", "") == "longrope":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        length = found[1].max_position_embeddings
        inv_freq, factor = ROPE_INIT_FUNCTIONS["longrope"](found[1], device="cpu", seq_len=length)
        return inv_freq.numpy(), factor
    return module.inv_freq.numpy(), getattr(module, "attention_scaling", 1.0)


@pytest.mark.parametrize("path", JUDGED, ids=lambda path: path.stem)
def test_frequencies_and_attention_factor(path: Path) -> None:
    spec = inspect_source(open_source(str(path))).spec
    inv_freq, factor = computed(path)
    np.testing.assert_allclose(spec.current().inv_freq, inv_freq, rtol=2e-6)
    assert spec.attention_factor == pytest.approx(factor, abs=1e-6)


def test_a_wrong_reading_is_noticed() -> None:
    """Hunyuan's theta without its alpha, 1,000 times too small, which is how it reads at first sight."""
    path = MORE / "tencent--Hunyuan-7B-Instruct.json"
    spec = inspect_source(open_source(str(path))).spec
    assert spec.rope_theta == pytest.approx(11_158_839.9, rel=1e-7)  # 10000 x 1000^(128 / 126)
    inv_freq, _ = computed(path)
    assert not np.allclose(10000.0 ** (-np.arange(64) / 64), inv_freq, rtol=1e-2)


def test_ministral_3_as_published_does_not_load() -> None:
    path = CONFIGS / "mistralai--Ministral-3-3B-2512.json"
    problems = {problem.code: problem.message for problem in inspect_source(open_source(str(path))).problems}
    assert "does not load it" in problems["load"]
    with pytest.raises(AttributeError, match="'dict' object has no attribute 'to_dict'"):
        built(path)
    assert "load" not in {
        one.code for one in inspect_source(open_source(str(CONFIGS / "Qwen--Qwen3-8B.json"))).problems
    }
    built(CONFIGS / "Qwen--Qwen3-8B.json")


def built(path: Path) -> Any:
    """The model of a config, on no memory."""
    import torch
    import transformers

    config = json.loads(path.read_text())
    made = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(made)


def test_nearly_every_published_config_is_judged() -> None:
    assert len(JUDGED) >= 49
