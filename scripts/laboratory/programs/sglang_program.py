"""Asks SGLang: builds its own model class for a config, on meta, and runs the rotary embedding of
every decoder layer.

The config goes through SGLang's ModelConfig (AutoConfig, its own config classes, its patches), the
model class comes from its registry, and the rotary objects are those that the constructor of the
model made; compiled modules are stubs (`sglang_stubs`). Only the rotary objects live on the CPU;
everything else is on meta. Their `forward_native` is given a unit vector per pair, so that cos and
sin come out as the model would apply them.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import probe_protocol as protocol
import torch
from published_keys import complete

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sglang_stubs
import transformers
import transformers.modeling_utils
from transformers.models.auto.image_processing_auto import AutoImageProcessor

# these look for torchvision and others, so they come before the stubs
transformers.PreTrainedModel, transformers.AutoModel  # noqa: B018
sys.modules["transformers"].AutoImageProcessor = AutoImageProcessor  # type: ignore[attr-defined] # 5.12 hides it
sglang_stubs.install()
logging.disable(logging.WARNING)

import sglang_world  # noqa: E402
import transformers_backend  # noqa: E402

LONGEST = 1 << 17
UNSEEN = {
    "LlavaForConditionalGeneration": "untested: its vision tower needs kernels",
    "HYV4ForCausalLM": "untested: it reads its config in its own way",
    "LongcatFlashForCausalLM": "untested: it reads its config in its own way",
    "MiMoV2FlashForCausalLM": (
        "untested: its model file requires other keys than the test config has"
    ),
    "Mistral4ForCausalLM": (
        "untested: the lab does not see how the class of transformers scales queries"
    ),
    "OpenAIPrivacyFilterModel": "untested: the lab does not understand how the class rotates",
}
"""Architectures that the lab cannot build."""


class ShortTorch:
    """`torch` for the rotary modules: a position table that would be gigabytes ends after LONGEST
    positions.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def arange(*arguments: Any, **keywords: Any) -> torch.Tensor:
        if len(arguments) == 1:
            arguments = (min(arguments[0], LONGEST),)
        elif len(arguments) == 2:
            arguments = (arguments[0], min(arguments[1], arguments[0] + LONGEST))
        return torch.arange(*arguments, **keywords)


def on_cpu(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def initialise(self: Any, *arguments: Any, **keywords: Any) -> None:
        with torch.device("cpu"):
            method(self, *arguments, **keywords)

    return initialise


def prepare() -> None:
    """Start SGLang's world of one rank, and let rotary objects make their tables on the CPU."""
    sglang_world.start()
    from sglang.srt.layers import rotary_embedding
    from sglang.srt.layers.rotary_embedding import base, mrope, rope_variant, yarn
    from sglang.srt.models import gemma3_causal

    for module in (base, yarn, mrope, rope_variant):
        module.torch = ShortTorch()  # type: ignore[attr-defined]
        for member in vars(module).values():
            is_own_class = isinstance(member, type) and member.__module__ == module.__name__
            if is_own_class and "__init__" in vars(member):
                member.__init__ = on_cpu(member.__init__)  # type: ignore[misc]
    rope_variant.get_device = lambda *_: "cpu"
    gemma3_rotary = gemma3_causal.Gemma3RotaryEmbedding
    gemma3_rotary.__init__ = on_cpu(gemma3_rotary.__init__)
    assert rotary_embedding is not None


def ours(error: BaseException) -> bool:
    """Whether an error was caused by a stub and not by SGLang."""
    text = "".join(traceback.format_exception(error))
    return "StubType" in text or "sglang_stubs" in text or "meta tensor" in text or "_cuda_" in text


def refuse(stage: str, error: BaseException) -> protocol.Refused:
    if ours(error):
        raise protocol.Unseen("untested: it requires what the lab does not have") from error
    return protocol.Refused(stage, error)


def load(
    config: dict[str, Any], options: dict[str, Any] | None = None
) -> tuple[Any, torch.nn.Module]:
    """Return SGLang's ModelConfig of a config and its model, on meta.

    Args:
        config: The whole config.json, which is completed.
        options: Those of the command that starts the server, such as
            {"model-impl": "transformers"}.

    Raises NoModel where SGLang has no class for it, Unseen where this program cannot build it, and
    Refused where SGLang fails.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.rotary_embedding import factory
    from sglang.srt.model_loader.utils import get_model_architecture
    from sglang.srt.models.registry import ModelRegistry

    factory._ROPE_DICT.clear()
    architecture = (config.get("architectures") or ["?"])[0]
    if architecture in UNSEEN:
        raise protocol.Unseen(UNSEEN[architecture])
    has_own_class = architecture in ModelRegistry.get_supported_archs()
    config.pop("quantization_config", None)
    complete(config)

    def not_in_registry(error: Exception) -> protocol.NoModel:
        return protocol.NoModel(f"{architecture} is not in the registry: {error}"[:300])

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            parsed = ModelConfig(model_path=folder, dtype="float32", **settings_of(options or {}))
        except Exception as error:
            if not has_own_class and not ours(error):
                raise not_in_registry(error) from error
            if "does not recognize this architecture" in str(error):
                raise protocol.NoModel(
                    f"transformers {transformers.__version__} has no config class for it"
                ) from error
            raise refuse("config", error) from error

        # a class of transformers, where SGLang has none of its own but can run that
        if not has_own_class:
            try:
                get_model_architecture(parsed)
            except Exception as error:
                raise not_in_registry(error) from error
        model_class, _ = get_model_architecture(parsed)
        torch.set_default_dtype(torch.float32)
        try:
            with torch.device("meta"):
                model = sglang_world.build(model_class, parsed)
        except Exception as error:
            raise refuse("load", error) from error
    return parsed, model


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ModelConfig for options of the command line."""
    settings: dict[str, Any] = {"trust_remote_code": False}
    for name, value in options.items():
        if name == "json-model-override-args":
            settings["model_override_args"] = json.dumps(value)
        else:
            settings[name.replace("-", "_")] = value
    return settings


def layers_of(model: torch.nn.Module, count: int) -> list[torch.nn.Module]:
    """Return the decoder layers of a model: a list of modules outside of other towers.

    Args:
        model: The model.
        count: The number of layers in the config.
    """
    for name, module in model.named_modules():
        if any(word in name for word in ("visual", "vision", "audio", "mtp")):
            continue
        if not isinstance(module, torch.nn.ModuleList) or len(module) != count:
            continue
        if name.split(".")[-1] in ("layers", "h"):
            return list(module)
    raise LookupError(f"no list of {count} decoder layers")


def rotates(attention: torch.nn.Module) -> bool:
    """Whether the forward of an attention calls its rotary embedding.

    It is decided by the flags that model files have for it.
    """
    for flag in ("use_rope", "apply_rope", "is_nope", "use_nope", "no_rope"):
        value = getattr(attention, flag, None)
        if isinstance(value, bool):
            return value if flag in ("use_rope", "apply_rope") else not value
    return sglang_world.rotates(attention)


def unit(rotary: Any, rows: int) -> torch.Tensor:
    """A vector with 1 for the first member of every pair and 0 for the second, for every row."""
    vector = torch.zeros(rows, rotary.head_size)
    if getattr(rotary, "is_neox_style", True):
        vector[:, : rotary.rotary_dim // 2] = 1
    else:
        vector[:, 0 : rotary.rotary_dim : 2] = 1
    return vector


def turn(rotary: Any, positions: list[int], planes: int) -> tuple[list[float], float]:
    """Return inv_freq and the attention factor that a rotary object applies at position 1.

    It rotates a vector with 1 for the first dimension of each pair and 0 for the second, which
    become the cosine and the sine of the pair.

    Args:
        rotary: The rotary object.
        positions: 1, and the last position, by which some objects choose their frequencies.
        planes: The rows of positions for M-RoPE; 0 for other models.
    """
    vector = unit(rotary, len(positions))
    place = torch.tensor(positions)
    if planes:
        place = place.expand(planes, -1).contiguous()
    # LongRoPE takes [tokens, width], and has no other way than `forward`
    is_longrope = type(rotary).__name__ == "Phi3LongRoPEScaledRotaryEmbedding"
    query = vector if is_longrope else vector.unsqueeze(1)
    run = rotary.forward if is_longrope else rotary.forward_native
    with torch.device("cpu"):
        rotated_query = run(place, query.clone(), query.clone())[0]  # and then the key
    first = rotated_query.reshape(len(positions), -1)[0]

    half = rotary.rotary_dim // 2
    if getattr(rotary, "is_neox_style", True):
        cos = first[:half]
        sin = first[half : 2 * half]
    else:
        cos = first[0 : 2 * half : 2]
        sin = first[1 : 2 * half : 2]
    return protocol.from_cos_sin(cos.double().tolist(), sin.double().tolist())


def shorten(rotary: Any) -> None:
    """Makes the two joined tables of longrope that were cut by ShortTorch consistent again, for
    fewer positions.
    """
    first = min(rotary.original_max_position_embeddings, LONGEST // 2)
    rotary.original_max_position_embeddings = first
    rotary.long_short_cos_sin_cache = torch.cat(
        [rotary.short_cos_sin_cache[:first], rotary.long_cos_sin_cache]
    )


def read(rotary: Any, question: dict[str, Any], planes: int) -> protocol.Answer:
    """Return the frequencies of a rotary object in a short sequence, and in one of the context.

    Args:
        rotary: The rotary object. Its table has at most LONGEST positions here.
        question: The trained length and the context, in tokens.
        planes: The rows of positions for M-RoPE; 0 for other models.
    """
    last = question["context"] - 1
    inside = min(question["trained"], question["context"]) - 1
    if hasattr(rotary, "cos_sin_cache"):
        # as its model runner does before the first request
        if hasattr(rotary, "_ensure_cos_sin_cache_length"):
            rotary._ensure_cos_sin_cache_length(min(last, LONGEST - 1))
        if len(rotary.cos_sin_cache) == LONGEST:
            last = min(last, LONGEST - 1)
    elif rotary.max_position_embeddings > LONGEST:
        shorten(rotary)
        last = min(last, LONGEST - 1)
        inside = min(inside, rotary.original_max_position_embeddings)
    try:
        short, short_factor = turn(rotary, [1, max(1, min(inside, last))], planes)
        long, long_factor = turn(rotary, [1, last], planes)
    except Exception as error:
        raise refuse("forward", error) from error
    return protocol.rope(long, long_factor, short, short_factor)


def of_gemma3(
    model: torch.nn.Module, layers: list[torch.nn.Module], question: dict[str, Any]
) -> list[protocol.Answer]:
    """Return the rope of each layer of Gemma 3.

    It rotates with the two rotary modules of its model, not with those that the attention has.

    Args:
        model: The model.
        layers: Its layers.
        question: The trained length and the context, in tokens.
    """
    owner = next(module for module in model.modules() if hasattr(module, "rotary_emb_local"))

    def read_at(rotary: Any, length: int) -> tuple[list[float], float]:
        """Return inv_freq and the attention factor in a sequence of some length."""
        try:
            with torch.device("cpu"):
                cos, sin = rotary(torch.zeros(1, 1), torch.tensor([[1, length - 1]]))
        except Exception as error:
            raise refuse("forward", error) from error
        half = cos.shape[-1] // 2
        cos_at_1 = cos[0, 0, :half].double()
        sin_at_1 = sin[0, 0, :half].double()
        return protocol.from_cos_sin(cos_at_1.tolist(), sin_at_1.tolist())

    def read_both(rotary: Any) -> protocol.Answer:
        short, short_factor = read_at(rotary, question["trained"])
        long, long_factor = read_at(rotary, question["context"])
        return protocol.rope(long, long_factor, short, short_factor)

    local = read_both(owner.rotary_emb_local)
    everywhere = read_both(owner.rotary_emb)
    return [local if layer.self_attn.is_sliding else everywhere for layer in layers]


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """Return what SGLang does with a config."""
    parsed, model = load(config, question.get("options"))
    return {**layers_read(parsed, model, question), "window": parsed.context_len}


def layers_read(parsed: Any, model: torch.nn.Module, question: dict[str, Any]) -> protocol.Answer:
    """Return what each layer of a model rotates with, and its factors.

    Args:
        parsed: SGLang's ModelConfig.
        model: The model.
        question: The trained length and the context, in tokens.
    """
    text = parsed.hf_text_config
    layers = layers_of(model, text.num_hidden_layers)
    if type(model).__name__.startswith("Transformers"):
        return transformers_backend.read(model, layers, question)
    planes = sglang_world.planes(parsed)
    if getattr(model, "is_mrope_enabled", False) and not planes:
        raise protocol.Refused(
            "forward", RuntimeError("the class reads positions that the runner does not make")
        )
    if any(hasattr(module, "rotary_emb_local") for module in model.modules()):
        scaling = float(layers[0].self_attn.scaling)
        return protocol.answer(of_gemma3(model, layers, question), scaling=scaling, mixed=True)

    rope_by_object: dict[int, protocol.Answer] = {}  # layers share rotary objects
    ropes: list[protocol.Answer | None] = []
    more: dict[str, Any] = {}
    for layer in layers:
        scaling = logit_scale(layer)
        if scaling is not None:
            more["scaling"] = scaling
        attention = rotating_attention(layer)
        if attention is None or not rotates(attention):
            ropes.append(None)
            continue
        rotary = attention.rotary_emb
        if id(rotary) not in rope_by_object:
            rope_by_object[id(rotary)] = read(rotary, question, planes)
        ropes.append(rope_by_object[id(rotary)])
    more |= sglang_world.query_scale(layers, question["context"] - 1)
    return protocol.answer(ropes, mixed=True, window=parsed.context_len, **more)


def rotating_attention(layer: torch.nn.Module) -> Any:
    """Return the module of a layer that has a rotary object; None without one.

    Where several have one, it is the first that is an attention.
    """
    holders = [
        module for module in layer.modules() if getattr(module, "rotary_emb", None) is not None
    ]
    for module in holders:
        if "attention" in type(module).__name__.lower() or hasattr(module, "attn"):
            return module
    return holders[0] if holders else None


def logit_scale(layer: torch.nn.Module) -> float | None:
    """Return the factor on logits of the attention kernel of a layer; None without one."""
    for module in layer.modules():
        if "RadixAttention" in type(module).__name__:
            scaling = getattr(module, "scaling", None)
            return float(scaling) if isinstance(scaling, (int, float)) else None
    return None


prepare()
