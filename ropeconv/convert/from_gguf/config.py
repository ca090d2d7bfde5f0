"""config.json from the keys of a GGUF file: the inverse of `hparams`, from the same tables.

Read `config_of` first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from ..to_gguf.conversions import names_in, solve
from ..to_gguf.hparams import SIZES, gguf_rules
from ..to_gguf.tensors import gguf_names
from .tensors import Shape, shape_before

if TYPE_CHECKING:
    from gguf import TensorNameMap

TAKE = "take the checkpoint that the file was made from"
LAYER = "model.layers.{layer}."
IN_LAYER = (
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
NAMES = ("model.embed_tokens", "model.norm", "lm_head", *(LAYER + name for name in IN_LAYER))
"""Names in the layout of Llama and Gemma, which most families use."""


def family_of(file: GgufFile) -> Family:
    """Return the family whose checkpoints become files like this one.

    Where several fit, it is the one with the most keys.

    Raises:
        UnsupportedBake: For an architecture that no known conversion writes.
    """
    arch = file.get("general.architecture")
    convertible = []
    for family in families():
        if family.gguf is not None and family.gguf.config:
            convertible.append((family, family.gguf))

    # several families may become files of one architecture, and differ in their keys
    known = [(family, rules) for family, rules in convertible if rules.arch == arch]
    windows = {bool(rules.window) for _, rules in known}
    fitting = [(family, rules) for family, rules in known if _has_keys_of(rules, windows, file)]
    if not fitting:
        archs = ", ".join(sorted({rules.arch for _, rules in convertible}))
        raise UnsupportedBake(
            f"a GGUF file of the architecture {arch}",
            "a checkpoint",
            f"only these are converted back: {archs}",
            TAKE,
        )

    # a family with fewer keys also fits the files of one that has the same keys and more
    family, _ = max(fitting, key=lambda pair: len(pair[1].u32))
    return family


def _has_keys_of(rules: Gguf, windows: set[bool], file: GgufFile) -> bool:
    """Whether a file has the keys that the conversion of a family writes.

    Args:
        rules: How checkpoints of the family become GGUF.
        windows: Whether families of this architecture have sliding windows: True, False, or both.
        file: The GGUF file.
    """
    # integers that come from config keys, such as "num_experts"
    for key, expression in rules.u32.items():
        is_needed = names_in(expression) and expression not in rules.absent
        if is_needed and file.get(f"{rules.arch}.{key}") is None:
            return False

    # values that are the same for every model of the family
    for key, value in rules.fixed.items():
        # a header has floats of 32 bits: 0.1 is 0.10000000149
        expected = float(np.float32(value)) if isinstance(value, float) else value
        if file.get(f"{rules.arch}.{key}", rules.absent.get(key)) != expected:
            return False

    if len(windows) == 1:  # windows do not tell the families of this architecture apart
        return True
    has_window = bool(file.get(f"{rules.arch}.attention.sliding_window"))
    return has_window == bool(rules.window)


def checkpoint_shapes(file: GgufFile, family: Family, layers: int) -> dict[str, Shape]:
    """Return the shapes of a checkpoint's tensors by name, in the order of the GGUF file.

    Rope tensors have no counterpart.

    Args:
        file: The GGUF file.
        family: The family of the model.
        layers: The number of its layers.

    Raises:
        UnsupportedBake: For a tensor that the family does not have.
    """
    rules = gguf_rules(family)
    gguf_map = gguf_names(rules.arch, layers)

    # The map from names in checkpoints to those in GGUF is not one to one, so every name that such
    # a checkpoint may have is converted. The first name that becomes a tensor of the file has it.
    by_target = dict[str, _TracedTensor]()
    for stem in _stems(file, family, rules, layers):
        for name in (stem, f"{stem}.weight", f"{stem}.bias"):
            traced = _trace(name, file, rules.convert, gguf_map)
            if traced is None or any(target in by_target for target in traced.targets):
                continue
            for target in traced.targets:
                by_target[target] = traced

    shapes = dict[str, Shape]()
    for target in file.tensors:
        if target.startswith("rope_f"):
            continue
        if target not in by_target:
            checkpoint = f"a checkpoint of {family.display_name}"
            raise UnsupportedBake(
                f"the tensor {target}", checkpoint, "it has no counterpart there", TAKE
            )
        shapes |= _unstack(by_target[target], rules)

    # tensors of one number, which are in metadata keys
    scalars = dict(rules.scalars.values())
    for number in range(layers):
        for name, shape in scalars.items():
            shapes[LAYER.format(layer=number) + name] = shape
    return shapes


def _stems(file: GgufFile, family: Family, rules: Gguf, layers: int) -> Iterator[str]:
    """Yield names that a checkpoint may have, without `.weight`."""
    special, _ = family.hooks.gguf_variant(file.tensors)
    stacks = [family.weights.layer[0] + merged for merged in rules.stacked.values()]
    for name in (*special, *rules.names, *stacks, *NAMES):
        if "{layer}" not in name:
            yield name
            continue
        for layer in range(layers):
            yield name.format(layer=layer)


class _TracedTensor(NamedTuple):
    """A tensor of the checkpoint, or a stack of them, and the tensors in GGUF made from it."""

    name: str
    shape: Shape
    targets: tuple[str, ...]
    """The tensors in GGUF that it becomes."""


def _trace(
    name: str, file: GgufFile, rules: tuple[Convert, ...], gguf_map: TensorNameMap
) -> _TracedTensor | None:
    """Return what a tensor of this name becomes in GGUF, or None where a part is absent.

    Args:
        name: A name in a checkpoint, or a name that an earlier rule has made.
        file: The GGUF file.
        rules: The conversions of the family that are still to be applied.
        gguf_map: The names of gguf-py.
    """
    # the first rule that matches makes new names, and the rules behind it apply to those
    for number, rule in enumerate(rules, 1):
        if not re.search(rule.match, name):
            continue
        new_names = [re.sub(rule.match, new, name) for new in rule.names] or [name]
        parts = list[_TracedTensor]()
        for new_name in new_names:
            part = _trace(new_name, file, rules[number:], gguf_map)
            if part is None:
                return None
            parts.append(part)
        shape = shape_before(rule.how, [part.shape for part in parts])
        if shape is None:
            return None
        targets = list[str]()
        for part in parts:
            targets += part.targets
        return _TracedTensor(name, shape, tuple(targets))

    target = gguf_map.get_name(key=name, try_suffixes=(".weight", ".bias"))
    if target not in file.tensors:
        return None
    shape = tuple(reversed(file.tensors[target].shape))  # GGUF has the fastest dimension first
    return _TracedTensor(name, shape, (target,))


def _unstack(traced: _TracedTensor, rules: Gguf) -> dict[str, Shape]:
    """The shapes of the tensors of a stack by name; that of the tensor itself for others."""
    # the inverse of `_stack` in to_gguf/tensors.py: mlp.experts becomes mlp.experts.0, .1, ...
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
"""Keys that are read with the RoPE, follow from others, or give the order of rows in all files."""
SPECIAL = ("bos", "eos", "padding")
"""Special tokens with an id in config.json, as GGUF names them."""


def config_of(file: GgufFile, family: Family, spec: RopeSpec, dtype: str) -> Config:
    """Return the config.json of a GGUF model.

    Args:
        file: The GGUF file.
        family: The family of the model.
        spec: The RoPE that llama.cpp computes.
        dtype: The dtype of the weights.

    Raises:
        UnsupportedBake: For a key or a RoPE that has no counterpart in the config of the family.
    """
    rules = gguf_rules(family)
    keys = ArchKeys(file, find_arch(rules.arch))
    _refuse_unread(file, family, rules)

    _, variant = family.hooks.gguf_variant(file.tensors)
    config: Config = {**rules.config, "model_type": family.text_type, **variant}
    config |= _sizes(keys, family, rules)
    config |= _settings(keys, rules)
    config |= _assumed(file, rules, spec)
    if rules.scale_layers:
        # Gemma 27B scales queries by hidden_size / heads and not by the width of a head. llama.cpp
        # recognises it by its number of layers, and has no key (f_attention_scale).
        width = spec.head_dim
        if len(spec.layers) == rules.scale_layers:
            width = config["hidden_size"] // config["num_attention_heads"]
        config["query_pre_attn_scalar"] = width
    config |= _vocabulary(file, rules)
    config |= _layers(family, rules, spec)

    if spec.query_scaling is not None:
        beta = _shortest(spec.query_scaling.beta)
        config["rope_parameters"] = {"rope_type": "default", family.keys.query_beta: beta}
    config["torch_dtype"] = dtype
    return bake_config(config, family, spec, native(spec.current(), spec, family))


def _sizes(keys: ArchKeys, family: Family, rules: Gguf) -> Config:
    """The sizes that every architecture has keys for.

    Args:
        keys: The keys of the GGUF file.
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
    """
    config: Config = {}
    for key, name in SIZES.items():
        if key not in rules.u32:
            config[name] = keys.whole(key)

    heads = keys.whole("attention.head_count")
    config[family.keys.heads[0]] = heads
    if family.keys.kv_heads:
        # converters write one key head for latent attention, as its cache has one
        kv_heads = heads if family.mla else keys.whole("attention.head_count_kv", heads)
        config[family.keys.kv_heads[0]] = kv_heads
    return config


def _assumed(file: GgufFile, rules: Gguf, spec: RopeSpec) -> Config:
    """The settings that have no key: llama.cpp assumes them, or sees them by the tensors.

    Args:
        file: The GGUF file.
        rules: How checkpoints of the family become GGUF.
        spec: The RoPE of the file.
    """
    # values that llama.cpp computes with, whatever a config says
    config: Config = {}
    for need in rules.need:
        is_for_small_models = need.below_layers > 0
        if is_for_small_models and len(spec.layers) >= need.below_layers:
            continue
        if need.value != need.default:
            config[need.key] = need.value

    # switches of parts that llama.cpp computes where their tensors are there, such as biases
    for name, part in rules.present.items():
        config[name] = any(part in tensor for tensor in file.tensors)

    # the activation, by the name that the class has as its default if that is one of its names
    if rules.act:
        names = rules.act.split(" | ")
        default = rules.defaults.get(rules.act_key)
        config[rules.act_key] = default if default in names else names[0]
    return config


def _vocabulary(file: GgufFile, rules: Gguf) -> Config:
    """The settings of embeddings and special tokens."""
    # llama.cpp takes the embeddings for the output where a file has no output.weight
    config: Config = {
        "vocab_size": file.tensors["token_embd.weight"].shape[-1],
        "tie_word_embeddings": rules.tied or "output.weight" not in file.tensors,
    }
    for name in SPECIAL:
        # "padding" is pad_token_id in a config
        key = f"{name.removesuffix('ding')}_token_id"
        config[key] = file.get(f"tokenizer.ggml.{name}_token_id")
    return config


def _settings(keys: ArchKeys, rules: Gguf) -> Config:
    """The settings that have a key in the file, and values for those whose key is absent.

    Args:
        keys: The keys of the GGUF file.
        rules: How checkpoints of the family become GGUF.
    """
    # An export computed each value by an expression over config keys, such as "num_experts" or
    # "a * b". These equations are solved for the config keys.
    equations: Config = {}
    for key, expression in rules.u32.items():
        if keys.get(key) is not None:
            equations[expression] = keys.whole(key)
    for key, expression in rules.f32.items():
        if keys.get(key) is not None:
            equations[expression] = _shortest(keys.get(key))
    for key, expression in rules.flag.items():
        if keys.get(key) is not None:
            equations[expression] = bool(keys.get(key))
    solved = solve(equations)

    # what the absence of a key means; TOML has no null, so "none" stands for it
    defaults: Config = {}
    for name, value in rules.absent.items():
        if name not in rules.fixed:
            defaults[name] = None if value == "none" else value
    return defaults | solved


def _refuse_unread(file: GgufFile, family: Family, rules: Gguf) -> None:
    """Raise UnsupportedBake for a key that the conversion of this family does not write.

    Args:
        file: The GGUF file.
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
    """
    # a key that is not read may change what the model computes, and the checkpoint would lack it
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
        if prefix != rules.arch:
            continue
        if name in read or ROPE.match(name):
            continue
        # some keys change nothing at a certain value
        is_idle = name in rules.idle and file.get(key) == rules.idle[name]
        if not is_idle:
            checkpoint = f"a checkpoint of {family.display_name}"
            raise UnsupportedBake(
                f"{key} = {file.get(key)!r}", checkpoint, "its config has no setting for it", TAKE
            )


def _layers(family: Family, rules: Gguf, spec: RopeSpec) -> Config:
    """The settings of windows and of layers that do not rotate.

    Args:
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
        spec: The RoPE of the file. `windows` has a size in tokens or None for each layer, and
            `layers` has "none" for layers that do not rotate.
    """
    # the window, which is off where no layer has one
    config: Config = {}
    sizes = [size for size in spec.windows if size is not None]
    if family.window.key:
        config[family.window.key] = sizes[0] if sizes and rules.window else None
    if family.window.switch:  # such as use_sliding_window
        config[family.window.switch] = False

    # transformers reads these names under layer_types, one for each layer
    only_some_have_windows = bool(sizes) and None in spec.windows
    if rules.window == "pattern" or only_some_have_windows:
        config["layer_types"] = [
            "full_attention" if size is None else "sliding_attention" for size in spec.windows
        ]
    for other in rules.layer_flags.values():  # the type of layers such as linear_attention
        config["layer_types"] = [
            other if kind == "none" else "full_attention" for kind in spec.layers
        ]

    # a list such as no_rope_layers, with 1 for layers that rotate
    if family.layers.flags:
        config[family.layers.flags] = [int(kind != "none") for kind in spec.layers]
    return config


def _shortest(value: Any) -> float:
    """The shortest decimal number that is the same in 32 bits."""
    return float(str(np.float32(value)))
