"""Hyperparameters of a model: from config.json to the keys of a GGUF architecture."""

from __future__ import annotations

from typing import Any

from ..errors import BadSource, UnsupportedBake, shown
from ..families import Family
from ..families.config import Config, positive_int, text_part
from ..families.family import Gguf
from ..families.layers import layer_names
from ..formats.gguf import Value, boolean, f32, string, u32
from ..formats.gguf.values import bools
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp import find_arch

LARGEST = 3e38  # of f32
SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
"""Keys that every architecture has, and the config keys that they come from."""


def hparams(config: Config, family: Family, spec: RopeSpec, vocabulary: int) -> dict[str, Value]:
    """The keys of a GGUF architecture for a model, with its unscaled RoPE.

    config: the whole config.json. family: of the model. spec: its unscaled RoPE. vocabulary: rows of the embeddings.
    Raises BadSource for keys that are absent, UnsupportedBake for settings that llama.cpp has no key for.
    """
    part, rules = text_part(config, family), _rules(family)
    _check(part, family, rules, spec)
    arch = rules.arch
    heads = _whole(part, SIZES["attention.head_count"])
    kv = heads if rules.qkv else positive_int(part, ("num_key_value_heads",), heads) or heads
    found: dict[str, Value] = {
        "general.architecture": string(arch),
        f"{arch}.block_count": u32(_whole(part, SIZES["block_count"])),
        f"{arch}.context_length": u32(spec.original_context),
        f"{arch}.embedding_length": u32(_whole(part, SIZES["embedding_length"])),
        f"{arch}.feed_forward_length": u32(_whole(part, SIZES["feed_forward_length"])),
        f"{arch}.attention.head_count": u32(heads),
        f"{arch}.attention.head_count_kv": u32(kv),
        f"{arch}.attention.key_length": u32(spec.head_dim),
        f"{arch}.attention.value_length": u32(spec.head_dim),
        f"{arch}.rope.dimension_count": u32(spec.rotary_dim),
        f"{arch}.rope.freq_base": f32(spec.rope_theta),
        f"{arch}.vocab_size": u32(vocabulary),
    }
    found |= {f"{arch}.{key}": u32(_count(part, name)) for key, name in rules.u32.items() if part.get(name) is not None}
    for key, name in rules.f32.items():
        if part.get(name) is not None:
            found[f"{arch}.{key}"] = f32(_number(part, name))
        elif key.startswith("attention.layer_norm"):
            raise BadSource(f"config.json has no {name}, which GGUF needs; add it")
    found |= {f"{arch}.{key}": boolean(bool(part[name])) for key, name in rules.flag.items() if name in part}
    if rules.window == "pattern":
        found |= _window(part, family, rules, spec)
    elif rules.window == "size":
        found[f"{arch}.attention.sliding_window"] = u32(positive_int(part, ("sliding_window",)) or 0)
    return found | _temperature(part, arch, spec)


def _rules(family: Family) -> Gguf:
    if family.gguf is None:
        raise UnsupportedBake(
            "GGUF output",
            family.display_name,
            "its conversion is not known here",
            "convert it with llama.cpp, then patch that",
        )
    return family.gguf


def _check(part: Config, family: Family, rules: Gguf, spec: RopeSpec) -> None:
    for need in rules.need:
        if need.below_layers and len(spec.layers) >= need.below_layers:
            continue
        value = part.get(need.key)
        if (need.default if value is None else value) != need.value:
            raise UnsupportedBake(
                f"{need.key} = {shown(value)}",
                f"GGUF as {rules.arch}",
                f"llama.cpp computes {need.value!r}",
                "keep safetensors",
            )
    act = {"swish": "silu"}.get(str(part.get("hidden_act")), part.get("hidden_act"))
    if rules.act and act not in (None, rules.act):
        raise UnsupportedBake(
            f"hidden_act = {shown(act)}", f"GGUF as {rules.arch}", f"llama.cpp computes {rules.act}", "keep safetensors"
        )
    for key in rules.not_null:
        if key in part and part[key] is None:
            raise UnsupportedBake(
                f"{key} = null", f"GGUF as {rules.arch}", "llama.cpp cannot switch it off", "keep safetensors"
            )
    if rules.tied and part.get("tie_word_embeddings") is False:
        raise UnsupportedBake(
            "tie_word_embeddings = false", f"GGUF as {rules.arch}", "llama.cpp uses the embeddings", "keep safetensors"
        )
    if rules.scale_layers:
        _check_scale(part, rules, spec)
    if family.layers.flags and "none" in spec.layers:
        interval = find_arch(rules.arch).nope_interval
        expected = tuple("none" if (i + 1) % interval == 0 else "global" for i in range(len(spec.layers)))
        if spec.layers != expected:
            raise UnsupportedBake(
                "no_rope_layers",
                f"GGUF as {rules.arch}",
                f"llama.cpp leaves out every {interval}th",
                "keep safetensors",
            )


def _check_scale(part: Config, rules: Gguf, spec: RopeSpec) -> None:
    large = part.get("num_hidden_layers") == rules.scale_layers
    width = _whole(part, "hidden_size") // _whole(part, "num_attention_heads") if large else spec.head_dim
    scalar = part.get("query_pre_attn_scalar", 256)
    if scalar != width:
        raise UnsupportedBake(
            f"query_pre_attn_scalar = {shown(scalar)}",
            f"GGUF as {rules.arch}",
            f"llama.cpp computes {width} for this size",
            "keep safetensors",
        )


def _window(part: Config, family: Family, rules: Gguf, spec: RopeSpec) -> dict[str, Value]:
    size = positive_int(part, ("sliding_window",))
    if size is None:
        return {}
    names = layer_names(part, family, len(spec.layers))
    pattern = [name == "sliding_attention" for name in names]
    arch = rules.arch
    found = {
        f"{arch}.attention.sliding_window": u32(size),
        f"{arch}.attention.sliding_window_pattern": bools(pattern),
    }
    if spec.local_form is not None:
        found[f"{arch}.rope.freq_base_swa"] = f32(spec.local_form.theta)
    return found


def _temperature(part: Config, arch: str, spec: RopeSpec) -> dict[str, Value]:
    """The keys of Ministral 3's query scaling, whose length is the original context; empty for other architectures."""
    rope = part.get("rope_parameters") or part.get("rope_scaling") or {}
    if arch != "mistral3" or not isinstance(rope, dict) or not rope.get("llama_4_scaling_beta"):
        return {}
    original = positive_int(rope, ("original_max_position_embeddings",)) or spec.original_context
    return {
        f"{arch}.attention.temperature_scale": f32(_number(rope, "llama_4_scaling_beta")),
        f"{arch}.rope.scaling.original_context_length": u32(original),
    }


def _whole(part: Config, name: str) -> int:
    value = positive_int(part, (name,))
    if value is None:
        raise BadSource(f"config.json has no {name}, which GGUF needs; add it")
    return value


def _count(part: Config, name: str) -> int:
    value: Any = part[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise BadSource(f"config.json has {name} = {shown(value)}; write a whole number there")
    return value


def _number(part: Config, name: str) -> float:
    value: Any = part[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        raise BadSource(f"config.json has {name} = {shown(value)}; write a number there, below {LARGEST:g}")
    return float(value)
