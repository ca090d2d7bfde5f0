"""Asks mlx-vlm on a CPU: builds the model as `mlx_vlm.utils.load_model` does, runs it, and watches
what it rotates.

`mlx_watch.py` says how. M-RoPE does not go through `mx.fast.rope`: in these models the projections
of queries and keys are replaced by unit vectors, and what reaches attention at position 1 is read.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import protocol
from mlx_vlm import utils
from mlx_vlm.models import cache
from mlx_watch import Runner, Watch, ask, read, watching

PARTS = ("text", "vision", "perceiver", "projector", "audio")


def _as_published(model_type: str, vision: dict[str, Any]) -> None:
    """Writes into a vision config what published ones have, and those of the lab's tiny models have
    not.
    """
    if "qwen" in model_type and vision.get("model_type") == f"{model_type}_vision":
        vision["model_type"] = model_type
    if model_type.startswith("qwen3_5"):
        vision["deepstack_visual_indexes"] = []
    if vision.get("hidden_size", 0) % vision.get("num_attention_heads", 1):
        vision["num_attention_heads"] = 16


def build(config: dict[str, Any]) -> Any:
    """The model, through the same steps as `load_model`. Raises Absent and Refused."""
    _as_published(config["model_type"], config.get("vision_config") or {})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        config = utils.load_config(Path(folder))
        try:
            architecture, _ = utils.get_model_and_args(config, Path(folder))
        except ValueError as error:
            raise protocol.Absent(str(error)) from None
        except ImportError as error:
            raise protocol.Refused("config", error) from error
    config.setdefault("text_config", config.pop("llm_config", {}))
    config.setdefault("vision_config", {})
    config.setdefault("audio_config", {})
    try:
        settings = architecture.ModelConfig.from_dict(config)
        settings = utils.update_module_configs(settings, architecture, config, PARTS)
    except Exception as error:
        raise protocol.Refused("config", error) from error
    try:
        model = architecture.Model(settings)
    except Exception as error:
        raise protocol.Refused("load", error) from error
    model.eval()
    return model


def decoder_layers(model: Any) -> list[Any]:
    """The decoder layers of the language model, in their order."""
    language = getattr(model, "language_model", model)
    return list(getattr(language, "layers", None) or language.model.layers)


def run(model: Any, tokens: mx.array) -> Any:
    """A pass over text, as `mlx_vlm.generate` makes it."""
    embedded = model.get_input_embeddings(tokens, None, mask=None)
    more = {
        key: value
        for key, value in embedded.to_dict().items()
        if key != "inputs_embeds" and value is not None
    }
    kept = cache.make_prompt_cache(model.language_model)
    return model.language_model(tokens, inputs_embeds=embedded.inputs_embeds, cache=kept, **more)


class Units(nn.Module):
    """A projection that gives unit vector i to every head of sequence i, and 0 beyond the width of
    a head.
    """

    def __init__(self, heads: int, size: int, width: int) -> None:
        super().__init__()
        beside = mx.zeros((size, width // heads - size))
        self.vectors = mx.tile(mx.concatenate([mx.eye(size), beside], axis=1), (1, heads))

    def __call__(self, x: mx.array) -> mx.array:
        return mx.broadcast_to(
            self.vectors[:, None], (len(self.vectors), x.shape[1], self.vectors.shape[1])
        )


def multimodal(model: Any, layers: list[Any], watch: Watch) -> list[protocol.Answer | None]:
    """The rope of each layer from what becomes of unit vectors; None for layers without attention.

    watch: of a pass before, with the heads of each layer. Raises AssertionError for layers that
    project otherwise.
    """
    sizes = set()
    for number, (queries, keys) in watch.heads.items():
        attentions = [
            module
            for module in layers[number].modules()
            if "q_proj" in module and "k_proj" in module
        ]
        assert len(attentions) == 1, f"{len(attentions)} modules project queries and keys"
        for name, (heads, size) in (("q_proj", queries), ("k_proj", keys)):
            attentions[0][name] = Units(heads, size, attentions[0][name].weight.shape[0])
            sizes.add(size)
        for name in [name for name in attentions[0] if "norm" in name]:
            attentions[0][name] = nn.Identity()
    assert len(sizes) == 1, f"heads of {sizes} dimensions"
    with watching(watch, layers):
        run(model, mx.zeros((sizes.pop(), 2), dtype=mx.int32))
    return [
        rotated(*watch.vectors[number]) if number in watch.vectors else None
        for number in range(len(layers))
    ]


def rotated(queries: mx.array, keys: mx.array) -> protocol.Answer | None:
    """The rope that turned unit vectors at position 1; None where they were left alone."""
    of_queries, of_keys = (
        np.array(tensor[:, 0, 1].astype(mx.float32)) for tensor in (queries, keys)
    )
    assert (of_queries == of_keys).all(), "queries and keys are rotated differently"
    if (of_keys == np.eye(len(of_keys))).all():
        return None
    inv_freq, attention_factor, pairs = read(of_keys)
    return {**protocol.rope(inv_freq, attention_factor), "pairs": pairs}


RUNNER = Runner(build, decoder_layers, run, multimodal)


if __name__ == "__main__":
    protocol.main(partial(ask, RUNNER))
