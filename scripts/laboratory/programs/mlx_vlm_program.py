"""Ask mlx-vlm on a CPU what it computes, with the watch of the program for mlx-lm.

The model is built as `mlx_vlm.utils.load_model` builds it. M-RoPE does not go through
`mx.fast.rope`: in these models the projections of queries and keys are replaced by unit vectors,
and what reaches attention at position 1 is read.
"""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import probe_protocol
from ask_mlx_lm import Watch, logit_scale, read_matrix, read_rope, watch_pass, watching
from mlx_vlm import utils
from mlx_vlm.models import cache

Answer = dict[str, Any]

VERSION = importlib.metadata.version("mlx-vlm")
PARTS = ("text", "vision", "perceiver", "projector", "audio")


def ask(config: Answer, question: Answer) -> Answer:
    """Return what mlx-vlm does with a config."""
    model = build(config)
    layers = decoder_layers(model)
    assert layers, "it has no layers"
    watch: HeadsWatch = watch_pass(model, layers, run, HeadsWatch)

    ropes: list[Answer | None] = []
    if watch.calls:
        for number in range(len(layers)):
            calls = watch.calls.get(number)
            ropes.append(read_rope(watch, calls, question) if calls else None)
    else:
        ropes = multimodal(model, layers, watch)
    assert any(ropes), "no layer rotates"

    more: Answer = {"scaling": logit_scale(watch, layers)}
    if watch.query_scale is not None:
        more["query_scale"] = float(f"{watch.query_scale(question['context'] - 1):.7g}")
    return probe_protocol.answer(ropes, mixed=True, **more)


def as_published(model_type: str, vision: Answer) -> None:
    """Write into a vision config what published ones have, and those of the lab lack."""
    if "qwen" in model_type and vision.get("model_type") == f"{model_type}_vision":
        vision["model_type"] = model_type
    if model_type.startswith("qwen3_5"):
        vision["deepstack_visual_indexes"] = []
    if vision.get("hidden_size", 0) % vision.get("num_attention_heads", 1):
        vision["num_attention_heads"] = 16


def build(config: Answer) -> Any:
    """Return the model that mlx-vlm makes of a config, by the same steps as its `load_model`.

    Raises NoModel where it has no class for the model, and Refused where that fails.
    """
    as_published(config["model_type"], config.get("vision_config") or {})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        config = utils.load_config(Path(folder))
        try:
            architecture, _ = utils.get_model_and_args(config, Path(folder))
        except ValueError as error:
            raise probe_protocol.NoModel(str(error)) from None
        except ImportError as error:
            raise probe_protocol.Refused("config", error) from error
    config.setdefault("text_config", config.pop("llm_config", {}))
    config.setdefault("vision_config", {})
    config.setdefault("audio_config", {})
    try:
        settings = architecture.ModelConfig.from_dict(config)
        settings = utils.update_module_configs(settings, architecture, config, PARTS)
    except Exception as error:
        raise probe_protocol.Refused("config", error) from error
    try:
        model = architecture.Model(settings)
    except Exception as error:
        raise probe_protocol.Refused("load", error) from error
    model.eval()
    return model


def decoder_layers(model: Any) -> list[Any]:
    """Return the decoder layers of the language model, in their order."""
    language = getattr(model, "language_model", model)
    return list(getattr(language, "layers", None) or language.model.layers)


def run(model: Any, tokens: mx.array) -> Any:
    """Pass text through a model, as `mlx_vlm.generate` does."""
    if not hasattr(model, "get_input_embeddings"):  # an encoder, such as ModernBERT
        return model(tokens)
    embedded = model.get_input_embeddings(tokens, None, mask=None)
    more = {}
    for key, value in embedded.to_dict().items():
        if key != "inputs_embeds" and value is not None:
            more[key] = value
    kept = cache.make_prompt_cache(model.language_model)
    return model.language_model(tokens, inputs_embeds=embedded.inputs_embeds, cache=kept, **more)


class HeadsWatch(Watch):
    """A watch that also notes the queries and keys of each layer."""

    def __init__(self, layers: dict[int, int], indexers: set[int]) -> None:
        super().__init__(layers, indexers)
        self.heads: dict[int, tuple[tuple[int, int], ...]] = {}
        """By layer, the number and the width of the heads of queries and of keys."""
        self.vectors: dict[int, tuple[mx.array, ...]] = {}
        """By layer, queries and keys of the last pass."""

    def attention(self, *args: Any, **kwargs: Any) -> Any:
        """Stand for mx.fast.scaled_dot_product_attention."""
        if self.layer is not None:
            self.vectors[self.layer] = args[:2]
            self.heads[self.layer] = tuple((array.shape[1], array.shape[3]) for array in args[:2])
        return super().attention(*args, **kwargs)


class Units(nn.Module):
    """A projection that gives unit vector i to every head of sequence i.

    Beyond the width of a head it gives 0.
    """

    def __init__(self, heads: int, size: int, width: int) -> None:
        super().__init__()
        beside = mx.zeros((size, width // heads - size))
        self.vectors = mx.tile(mx.concatenate([mx.eye(size), beside], axis=1), (1, heads))

    def __call__(self, x: mx.array) -> mx.array:
        shape = (len(self.vectors), x.shape[1], self.vectors.shape[1])
        return mx.broadcast_to(self.vectors[:, None], shape)


def multimodal(model: Any, layers: list[Any], watch: HeadsWatch) -> list[Answer | None]:
    """Return the rope of each layer from what becomes of unit vectors; None without attention.

    Multimodal rotations are code of the model, and not mx.fast.rope. So the projections of queries
    and keys are replaced by unit vectors, and the watch sees what attention is given.

    Args:
        model: The model. Its projections are replaced.
        layers: Its layers.
        watch: That of a pass before, with the heads of each layer.

    Raises AssertionError for layers that project otherwise.
    """
    sizes = set()  # the widths of heads
    for number, (queries, keys) in watch.heads.items():
        attentions = []
        for module in layers[number].modules():
            if "q_proj" in module and "k_proj" in module:
                attentions.append(module)
        assert len(attentions) == 1, f"{len(attentions)} modules project queries and keys"
        attention = attentions[0]
        for name, (heads, size) in (("q_proj", queries), ("k_proj", keys)):
            outputs = attention[name].weight.shape[0]
            attention[name] = Units(heads, size, outputs)
            sizes.add(size)
        norms = [name for name in attention if "norm" in name]
        for name in norms:  # which would change the vectors
            attention[name] = nn.Identity()
    assert len(sizes) == 1, f"heads of {sizes} dimensions"

    # a sequence for each unit vector, of two tokens
    with watching(watch, layers):
        run(model, mx.zeros((sizes.pop(), 2), dtype=mx.int32))
    ropes: list[Answer | None] = []
    for number in range(len(layers)):
        if number in watch.vectors:
            ropes.append(rotated(*watch.vectors[number]))
        else:
            ropes.append(None)
    return ropes


def rotated(queries: mx.array, keys: mx.array) -> Answer | None:
    """Return the rope that turned unit vectors at position 1; None where they were left alone."""
    of_queries = np.array(queries[:, 0, 1].astype(mx.float32))
    of_keys = np.array(keys[:, 0, 1].astype(mx.float32))
    assert (of_queries == of_keys).all(), "queries and keys are rotated differently"
    if (of_keys == np.eye(len(of_keys))).all():
        return None
    inv_freq, attention_factor, pairs = read_matrix(of_keys)
    return {**probe_protocol.rope(inv_freq, attention_factor), "pairs": pairs}
