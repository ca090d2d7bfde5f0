"""config.json from the keys of a GGUF file: the way back of `hparams`, from the same tables."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...encode.checkpoint.config_edit import bake_config
from ...encode.checkpoint.encodings.native import native
from ...errors import UnsupportedBake
from ...families import Family
from ...families.config import Config
from ...families.gguf import Gguf
from ...formats.gguf import GgufFile
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp import find_arch
from ...runtimes.llamacpp.keys import ArchKeys
from ..expression import solved
from ..hparams import SIZES, gguf_rules
from .names import variants_of

ROPE = re.compile(
    r"rope\.|context_length$|vocab_size$|attention\.((key|value)_length|sliding_window|temperature_)|"
    r"attention\.(head_count|head_count_kv)$|tensor_data_layout$"
)
"""Keys that are read with the RoPE, follow from the others, or say what the order of rows in all files is."""
SPECIAL = ("bos", "eos", "padding")


def config_of(file: GgufFile, family: Family, spec: RopeSpec, dtype: str) -> Config:
    """The config.json of a GGUF model.

    file: the model. family: that it is of. spec: the RoPE that llama.cpp computes. dtype: of the weights, as torch
    names it. Raises UnsupportedBake for a key that has no counterpart in the config of the family, and for a RoPE that
    has none.
    """
    rules = gguf_rules(family)
    keys = ArchKeys(file, find_arch(rules.arch))
    _refuse_unread(file, family, rules)
    config: Config = {**rules.config, "model_type": _model_type(family)}
    for variant in variants_of(file, rules):
        config |= variant.config
    config |= {name: keys.whole(key) for key, name in SIZES.items() if key not in rules.u32}
    heads = keys.whole("attention.head_count")
    config[family.keys.heads[0]] = heads
    if family.keys.kv_heads:
        config[family.keys.kv_heads[0]] = heads if family.mla else keys.whole("attention.head_count_kv", heads)
    config |= _settings(keys, rules)
    needed = (need for need in rules.need if need.value != need.default)  # llama.cpp assumes them
    config |= {need.key: need.value for need in needed if not 0 < need.below_layers <= len(spec.layers)}
    config |= {name: any(part in tensor for tensor in file.tensors) for name, part in rules.present.items()}
    if rules.act:
        same = rules.act.split(" | ")
        config[rules.act_key] = next((act for act in same if act == rules.defaults.get(rules.act_key)), same[0])
    if rules.scale_layers:
        large = len(spec.layers) == rules.scale_layers
        heads = config["num_attention_heads"]
        config["query_pre_attn_scalar"] = config["hidden_size"] // heads if large else spec.head_dim
    config["vocab_size"] = file.tensors["token_embd.weight"].shape[-1]
    config["tie_word_embeddings"] = rules.tied or "output.weight" not in file.tensors
    for name in SPECIAL:
        found = file.get(f"tokenizer.ggml.{name}_token_id")
        config[f"{name.removesuffix('ding')}_token_id"] = found
    config |= _layers(family, rules, spec)
    if spec.query_scaling is not None:
        beta = _shortest(spec.query_scaling.beta)
        config["rope_parameters"] = {"rope_type": "default", family.keys.query_beta: beta}
    config["torch_dtype"] = dtype
    return bake_config(config, family, spec, native(spec.current(), spec, family))


def _settings(keys: ArchKeys, rules: Gguf) -> Config:
    """The settings that have a key, and what `absent` says where the file lacks it."""
    values: Config = {text: keys.whole(key) for key, text in rules.u32.items() if keys.get(key) is not None}
    values |= {text: _shortest(keys.get(key)) for key, text in rules.f32.items() if keys.get(key) is not None}
    values |= {text: bool(keys.get(key)) for key, text in rules.flag.items() if keys.get(key) is not None}
    absent = {
        name: None if value == "none" else value for name, value in rules.absent.items() if name not in rules.fixed
    }
    return absent | solved(values)


def _model_type(family: Family) -> str:
    """The model type of the language model alone."""
    text = [name for name in family.model_types if name.endswith("_text")]
    return (text or [family.model_types[0]])[0]


def _refuse_unread(file: GgufFile, family: Family, rules: Gguf) -> None:
    """Raises UnsupportedBake for a key of the architecture that the conversion of this family does not write."""
    read = {*SIZES, *rules.u32, *rules.f32, *rules.flag, *rules.layer_flags, *rules.fixed, family.layers.interval_key}
    for key in file.header.values:
        prefix, _, name = key.partition(".")
        is_idle = name in rules.idle and file.get(key) == rules.idle[name]
        if prefix == rules.arch and name not in read and not is_idle and not ROPE.match(name):
            raise UnsupportedBake(
                f"{key} = {file.get(key)!r}",
                f"a checkpoint of {family.display_name}",
                "its config has no such setting",
                "take the checkpoint that the file was made from",
            )


def _layers(family: Family, rules: Gguf, spec: RopeSpec) -> Config:
    """The settings of windows and of layers that do not rotate."""
    found: Config = {}
    sizes = [size for size in spec.windows if size is not None]
    if family.window.key:
        found[family.window.key] = sizes[0] if sizes and rules.window else None
    if family.window.switch:
        found[family.window.switch] = False
    if rules.window == "pattern" or (sizes and None in spec.windows):
        found["layer_types"] = ["full_attention" if size is None else "sliding_attention" for size in spec.windows]
    for other in rules.layer_flags.values():
        found["layer_types"] = [other if kind == "none" else "full_attention" for kind in spec.layers]
    if family.layers.flags:
        found[family.layers.flags] = [int(kind != "none") for kind in spec.layers]
    return found


def _shortest(value: Any) -> float:
    """The shortest decimal number that is the same in 32 bits."""
    return float(str(np.float32(value)))
