"""config.json from the keys of a GGUF file: the inverse of `hparams`, from the same tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import UnsupportedBake
from ...formats.gguf.file import GgufFile
from ...models.family import Convert, Family, Gguf
from ...models.registry import families
from ...models.schema import Config
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp.archs import find_arch
from ...runtimes.llamacpp.scaling import ArchKeys
from ..config_edit import bake_config
from ..encodings.native import native
from ..to_gguf.conversions import names_in, solved
from ..to_gguf.hparams import SIZES, gguf_rules
from ..to_gguf.tensors import gguf_names
from .tensors import Shape, shape_before

if TYPE_CHECKING:
    from gguf import TensorNameMap

TAKE = "take the checkpoint that the file was made from"
LAYER = "model.layers.{layer}."
NAMES = (
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    *(
        LAYER + name
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "self_attn.q_norm",
            "self_attn.k_norm",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "mlp.gate",
            "mlp.shared_expert_gate",
            "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj",
            "mlp.shared_expert.down_proj",
        )
    ),
)
"""Names in the layout of Llama and Gemma, which most families use."""


def family_of(file: GgufFile) -> Family:
    """Return the family whose checkpoints become files like this one; of several, the one with the
    most keys.

    Raises:
        UnsupportedBake: For an architecture that no known conversion writes.
    """
    arch = file.get("general.architecture")
    convertible = [
        (family, family.gguf)
        for family in families()
        if family.gguf is not None and family.gguf.config
    ]
    known = [(family, rules) for family, rules in convertible if rules.arch == arch]
    windows = {bool(rules.window) for _, rules in known}
    fitting = [(family, rules) for family, rules in known if _fits(rules, windows, file)]
    if not fitting:
        archs = ", ".join(sorted({rules.arch for _, rules in convertible}))
        raise UnsupportedBake(
            f"a GGUF file of the architecture {arch}",
            "a checkpoint",
            f"only these are converted back: {archs}",
            TAKE,
        )
    return max(fitting, key=lambda pair: len(pair[1].u32))[0]


def _fits(rules: Gguf, windows: set[bool], file: GgufFile) -> bool:
    """Whether a file has the keys of a family.

    Args:
        windows: Whether families of this architecture have windows.
    """
    has_window = bool(file.get(f"{rules.arch}.attention.sliding_window"))
    needed = [key for key, text in rules.u32.items() if names_in(text) and text not in rules.absent]
    required = all(file.get(f"{rules.arch}.{key}") is not None for key in needed)
    fixed = all(
        file.get(f"{rules.arch}.{key}", rules.absent.get(key))
        == (float(np.float32(value)) if isinstance(value, float) else value)
        for key, value in rules.fixed.items()
    )
    return required and fixed and (len(windows) == 1 or has_window == bool(rules.window))


def checkpoint_shapes(file: GgufFile, family: Family, layers: int) -> dict[str, Shape]:
    """Return the shapes of a checkpoint's tensors by name, in the order of the GGUF file, without
    rope tensors.

    Raises:
        UnsupportedBake: For a tensor that the family does not have.
    """
    rules = gguf_rules(family)
    by_target = dict[str, _TracedKeys]()
    gguf_map = gguf_names(rules.arch, layers)
    special, _ = family.hooks.gguf_variant(file.tensors)
    stacks = [family.weights.layer[0] + merged for merged in rules.stacked.values()]
    names = (*special, *rules.names, *stacks, *NAMES)
    stems = (
        name.format(layer=at) for name in names for at in range(layers if "{layer}" in name else 1)
    )
    for stem in stems:
        for name in (stem, f"{stem}.weight", f"{stem}.bias"):
            traced = _traced(name, file, rules.convert, gguf_map)
            if traced is not None and not by_target.keys() & set(traced.targets):
                by_target |= dict.fromkeys(traced.targets, traced)
    shapes = dict[str, Shape]()
    for target in file.tensors:
        if target.startswith("rope_f"):
            continue
        if target not in by_target:
            checkpoint = f"a checkpoint of {family.display_name}"
            raise UnsupportedBake(
                f"the tensor {target}", checkpoint, "it has no counterpart there", TAKE
            )
        shapes |= _unstacked(by_target[target], rules)
    scalars = dict(rules.scalars.values())
    return shapes | {
        LAYER.format(layer=number) + name: scalars[name]
        for number in range(layers)
        for name in scalars
    }


class _TracedKeys(NamedTuple):
    """A tensor of the checkpoint, or a stack of them."""

    name: str
    shape: Shape
    targets: tuple[str, ...]
    """The tensors in GGUF that it becomes."""


def _traced(
    name: str, file: GgufFile, rules: tuple[Convert, ...], gguf_map: TensorNameMap
) -> _TracedKeys | None:
    """Return what a tensor of this name becomes in GGUF, or None where a part is absent.

    Args:
        gguf_map: Names of gguf-py.
    """
    for number, rule in enumerate(rules, 1):
        if re.search(rule.match, name):
            new_names = [re.sub(rule.match, new, name) for new in rule.names] or [name]
            parts = [_traced(new_name, file, rules[number:], gguf_map) for new_name in new_names]
            known = [part for part in parts if part is not None]
            shape = (
                shape_before(rule.how, [part.shape for part in known])
                if len(known) == len(new_names)
                else None
            )
            targets = tuple(target for part in known for target in part.targets)
            return None if shape is None else _TracedKeys(name, shape, targets)
    target = gguf_map.get_name(key=name, try_suffixes=(".weight", ".bias"))
    if target not in file.tensors:
        return None
    return _TracedKeys(name, tuple(reversed(file.tensors[target].shape)), (target,))


def _unstacked(traced: _TracedKeys, rules: Gguf) -> dict[str, Shape]:
    """The shapes of the tensors of a stack by name; that of the tensor itself for others."""
    for pattern, merged in rules.stacked.items():
        match = re.search(re.escape(merged) + r"(?=\.|$)", traced.name)
        if match:
            before = traced.name[: match.start()]
            after = traced.name[match.end() :]
            count, *shape = traced.shape
            names = [before + pattern.replace("{}", str(number)) + after for number in range(count)]
            return dict.fromkeys(names, tuple(shape))
    return {traced.name: traced.shape}


ROPE = re.compile(
    r"rope\.|context_length$|vocab_size$|attention\.((key|value)_length|sliding_window|temperature_)|"
    r"attention\.(head_count|head_count_kv)$|tensor_data_layout$"
)
"""Keys that are read with the RoPE, follow from the others, or give the order of rows in all
files.
"""
SPECIAL = ("bos", "eos", "padding")


def config_of(file: GgufFile, family: Family, spec: RopeSpec, dtype: str) -> Config:
    """Return the config.json of a GGUF model.

    Args:
        spec: The RoPE that llama.cpp computes.
        dtype: of the weights.

    Raises:
        UnsupportedBake: For a key or a RoPE that has no counterpart in the config of the family.
    """
    rules = gguf_rules(family)
    keys = ArchKeys(file, find_arch(rules.arch))
    _refuse_unread(file, family, rules)
    _, variant = family.hooks.gguf_variant(file.tensors)
    config: Config = {**rules.config, "model_type": family.text_type, **variant}
    config |= {name: keys.whole(key) for key, name in SIZES.items() if key not in rules.u32}
    heads = keys.whole("attention.head_count")
    config[family.keys.heads[0]] = heads
    if family.keys.kv_heads:
        config[family.keys.kv_heads[0]] = (
            heads if family.mla else keys.whole("attention.head_count_kv", heads)
        )
    config |= _settings(keys, rules)
    needed = (need for need in rules.need if need.value != need.default)  # llama.cpp assumes them
    config |= {
        need.key: need.value for need in needed if not 0 < need.below_layers <= len(spec.layers)
    }
    config |= {
        name: any(part in tensor for tensor in file.tensors) for name, part in rules.present.items()
    }
    if rules.act:
        same = rules.act.split(" | ")
        config[rules.act_key] = next(
            (act for act in same if act == rules.defaults.get(rules.act_key)), same[0]
        )
    if rules.scale_layers:
        large = len(spec.layers) == rules.scale_layers
        heads = config["num_attention_heads"]
        config["query_pre_attn_scalar"] = config["hidden_size"] // heads if large else spec.head_dim
    config["vocab_size"] = file.tensors["token_embd.weight"].shape[-1]
    config["tie_word_embeddings"] = rules.tied or "output.weight" not in file.tensors
    for name in SPECIAL:
        config[f"{name.removesuffix('ding')}_token_id"] = file.get(
            f"tokenizer.ggml.{name}_token_id"
        )
    config |= _layers(family, rules, spec)
    if spec.query_scaling is not None:
        beta = _shortest(spec.query_scaling.beta)
        config["rope_parameters"] = {"rope_type": "default", family.keys.query_beta: beta}
    config["torch_dtype"] = dtype
    return bake_config(config, family, spec, native(spec.current(), spec, family))


def _settings(keys: ArchKeys, rules: Gguf) -> Config:
    """The settings with a key, and the values of `absent` where the file lacks it."""
    values: Config = {
        text: keys.whole(key) for key, text in rules.u32.items() if keys.get(key) is not None
    }
    values |= {
        text: _shortest(keys.get(key))
        for key, text in rules.f32.items()
        if keys.get(key) is not None
    }
    values |= {
        text: bool(keys.get(key)) for key, text in rules.flag.items() if keys.get(key) is not None
    }
    absent = {
        name: None if value == "none" else value
        for name, value in rules.absent.items()
        if name not in rules.fixed
    }
    return absent | solved(values)


def _refuse_unread(file: GgufFile, family: Family, rules: Gguf) -> None:
    """Raise UnsupportedBake for a key of the architecture that the conversion of this family does
    not write.
    """
    read = {
        *SIZES,
        *rules.u32,
        *rules.f32,
        *rules.flag,
        *rules.layer_flags,
        *rules.fixed,
        family.layers.interval_key,
    }
    for key in file.header.values:
        prefix, _, name = key.partition(".")
        is_idle = name in rules.idle and file.get(key) == rules.idle[name]
        if prefix == rules.arch and name not in read and not is_idle and not ROPE.match(name):
            checkpoint = f"a checkpoint of {family.display_name}"
            raise UnsupportedBake(
                f"{key} = {file.get(key)!r}", checkpoint, "its config has no setting for it", TAKE
            )


def _layers(family: Family, rules: Gguf, spec: RopeSpec) -> Config:
    """The settings of windows and of layers that do not rotate."""
    config: Config = {}
    sizes = [size for size in spec.windows if size is not None]
    if family.window.key:
        config[family.window.key] = sizes[0] if sizes and rules.window else None
    if family.window.switch:
        config[family.window.switch] = False
    if rules.window == "pattern" or (sizes and None in spec.windows):
        config["layer_types"] = [
            "full_attention" if size is None else "sliding_attention" for size in spec.windows
        ]
    for other in rules.layer_flags.values():
        config["layer_types"] = [
            other if kind == "none" else "full_attention" for kind in spec.layers
        ]
    if family.layers.flags:
        config[family.layers.flags] = [int(kind != "none") for kind in spec.layers]
    return config


def _shortest(value: Any) -> float:
    """The shortest decimal number that is the same in 32 bits."""
    return float(str(np.float32(value)))
