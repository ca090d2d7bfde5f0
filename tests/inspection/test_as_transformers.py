"""Published configs as transformers' own classes resolve them: frequencies, attention factor, and
windows.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.models.config import detect, text_part

from ..conftest import CONFIGS
from ..support.baking import inspected
from ..support.extent import sample

pytest.importorskip("torch")
MORE = CONFIGS.parent / "more_configs"
PUBLISHED = sorted([*CONFIGS.glob("*.json"), *MORE.glob("*.json")])
MINISTRAL = CONFIGS / "mistralai--Ministral-3-3B-2512.json"
NAMED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
ALL_LAYERS = ("mistral", "mixtral", "phi3", "starcoder2", "ministral3", "qwen3_moe")
"""Families whose model files give one mask to every layer."""


def text_config(path: Path) -> tuple[str, Any] | None:
    """The family and the text config as transformers' class resolves it; None for what transformers
    does not have.
    """
    import transformers

    config = json.loads(path.read_text())
    try:
        family = detect(config)
    except BadSource:
        return None
    part = dict(text_part(config, family))
    model_type = part.pop("model_type", family.model_types[-1])
    if family.refuse or model_type not in transformers.CONFIG_MAPPING:
        return None
    return family.name, transformers.AutoConfig.for_model(model_type, **part).get_text_config()


JUDGED = {
    path.stem: (path, *family_config)
    for path in PUBLISHED
    if (family_config := text_config(path)) is not None
}


def windows(family: str, config: Any) -> list[int | None]:
    """The window of each layer by transformers: layer_types, or the one mask that all layers
    get.
    """
    count = config.num_hidden_layers
    if family in ALL_LAYERS:
        return [getattr(config, "sliding_window", None) or None] * count
    types = getattr(config, "layer_types", None) or ["full_attention"] * count
    return [(getattr(config, NAMED[name]) if name in NAMED else None) or None for name in types]


def computed(config: Any) -> tuple[np.ndarray, float]:
    """inv_freq of the layers that an extension changes, at the declared length, and the attention
    factor.
    """
    modeling = importlib.import_module(
        type(config).__module__.replace(".configuration_", ".modeling_")
    )
    names = [
        name for name in vars(modeling) if name.endswith("RotaryEmbedding") and "Vision" not in name
    ]
    module = getattr(modeling, min(names, key=len))(config)
    if not hasattr(module, "inv_freq"):  # a set per layer type
        return module.full_attention_inv_freq.numpy(), module.full_attention_attention_scaling
    if getattr(module, "rope_type", "") == "longrope":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        length = config.max_position_embeddings
        inv_freq, factor = ROPE_INIT_FUNCTIONS["longrope"](config, device="cpu", seq_len=length)
        return inv_freq.numpy(), factor
    return module.inv_freq.numpy(), getattr(module, "attention_scaling", 1.0)


@pytest.mark.parametrize("name", sample(list(JUDGED), 12))
def test_what_transformers_computes(name: str) -> None:
    path, family, config = JUDGED[name]
    spec = inspected(path).spec
    assert list(spec.windows) == windows(family, config)
    assert len(spec.layers) == len(spec.windows)
    if path != MINISTRAL:  # which does not load
        inv_freq, factor = computed(config)
        np.testing.assert_allclose(spec.current().inv_freq, inv_freq, rtol=2e-6)
        assert spec.attention_factor == pytest.approx(factor, abs=1e-6)
