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
    """Return the family whose checkpoints become GGUF files like this one.

    Several families may become files of one architecture. They differ in the keys that
    their conversions write.

    Raises:
        UnsupportedBake: For an architecture that no known conversion writes.
    """
    arch = file.get("general.architecture")
    convertible = []
    for family in families():
        if family.gguf is not None and family.gguf.config:
            convertible.append((family, family.gguf))

    # the families of this architecture, of which some may have sliding windows and others not
    known = [(family, rules) for family, rules in convertible if rules.arch == arch]
    windows = {bool(rules.window) for _, rules in known}
    windows_differ = len(windows) == 2
    fitting = []
    for family, rules in known:
        if _has_keys_of(rules, windows_differ, file):
            fitting.append((family, rules))
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


def _has_keys_of(rules: Gguf, windows_differ: bool, file: GgufFile) -> bool:
    """Whether a file has the keys that the conversion of a family writes.

    Args:
        rules: How checkpoints of the family become GGUF.
        windows_differ: Whether a sliding window tells the families of this architecture apart,
            since some have one and others do not.
        file: The GGUF file.
    """
    # integers that come from config keys, such as "num_experts"; a file may lack those that
    # `absent` gives a value for
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

    if not windows_differ:
        return True
    has_window = bool(file.get(f"{rules.arch}.attention.sliding_window"))
    return has_window == bool(rules.window)


def checkpoint_shapes(file: GgufFile, family: Family, layers: int) -> dict[str, Shape]:
    """Return the shapes of a checkpoint's tensors by name, in the order of the GGUF file.

    The names in GGUF do not say from which tensors of a checkpoint they come. So every name that a
    checkpoint of the family may have is followed to the names that it would become in GGUF.

    Args:
        file: The GGUF file.
        family: The family of the model.
        layers: The number of its layers.

    Raises:
        UnsupportedBake: For a tensor that the family does not have.
    """
    rules = gguf_rules(family)
    gguf_map = gguf_names(rules.arch, layers)

    # For each tensor of the file, the tensor of the checkpoint that it comes from. Where several
    # names become the same tensor, the first of them counts.
    by_target = dict[str, _TracedTensor]()
    for stem in _stems(file, family, rules, layers):
        for name in (stem, f"{stem}.weight", f"{stem}.bias"):
            traced = _trace(name, file, rules.convert, gguf_map)
            if traced is None:  # the file does not have it
                continue
            if any(target in by_target for target in traced.targets):
                continue
            for target in traced.targets:
                by_target[target] = traced

    shapes = dict[str, Shape]()
    for target in file.tensors:
        if target.startswith("rope_f"):  # rope_freqs or rope_factors, which no checkpoint has
            continue
        if target not in by_target:
            checkpoint = f"a checkpoint of {family.display_name}"
            raise UnsupportedBake(
                f"the tensor {target}", checkpoint, "it has no counterpart there", TAKE
            )
        shapes |= _unstack(by_target[target], rules)

    # tensors with a single number in each layer, which GGUF has in metadata keys
    for number in range(layers):
        for name, shape in rules.scalars.values():
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
    """Return the shape of a checkpoint's tensor, from the tensors that it becomes in a GGUF file.

    Names are followed from the checkpoint to the file, rule by rule, and shapes back. For example,
    a rule splits `qkv` into `q` and `k`, which the file has with 8 and 4 rows: then `qkv` has 12.

    Args:
        name: A name in a checkpoint, or a name that an earlier rule has made.
        file: The GGUF file.
        rules: The conversions of the family that are still to be applied, in their order.
        gguf_map: The names of gguf-py.

    Returns:
        The tensor with its shape, and the names in the file; None where the file lacks one of them,
        or where the shape cannot be known.
    """
    # the first rule that matches makes new names, to which the rules behind it apply
    for number, rule in enumerate(rules, 1):
        if not re.search(rule.match, name):
            continue
        rules_behind = rules[number:]
        new_names = [re.sub(rule.match, new, name) for new in rule.names] or [name]
        parts = list[_TracedTensor]()
        for new_name in new_names:
            part = _trace(new_name, file, rules_behind, gguf_map)
            if part is None:
                return None
            parts.append(part)

        # back from the shapes of the new tensors to that of the one before this rule
        shape = shape_before(rule.how, [part.shape for part in parts])
        if shape is None:
            return None
        targets = list[str]()
        for part in parts:
            targets += part.targets
        return _TracedTensor(name, shape, tuple(targets))

    # no rule is left: the tensor is in the file under its name in GGUF
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
    """Return the config.json of a GGUF model, as a checkpoint of the family has it.

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

    # what all checkpoints of the family have, then what the keys of the file say, then what
    # llama.cpp assumes without a key
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

    # the RoPE that the file has now, written as for any other checkpoint
    rope_setting = native(spec.current(), spec, family)
    return bake_config(config, family, spec, rope_setting)


def _sizes(keys: ArchKeys, family: Family, rules: Gguf) -> Config:
    """The sizes that every architecture has keys for, under their names in config.json.

    Args:
        keys: The keys of the GGUF file.
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
    """
    # keys of `u32` come from other settings of this family, and are converted back in `_settings`
    config: Config = {}
    for key, name in SIZES.items():
        if key not in rules.u32:
            config[name] = keys.whole(key)

    # a family may know several names of a setting, of which the first is the usual one
    heads = keys.whole("attention.head_count")
    heads_key = family.keys.heads[0]
    config[heads_key] = heads
    if family.keys.kv_heads:
        kv_heads_key = family.keys.kv_heads[0]
        if family.mla:
            # GGUF has 1 for latent attention, whose cache has one key; a config has all heads
            config[kv_heads_key] = heads
        else:
            config[kv_heads_key] = keys.whole("attention.head_count_kv", heads)
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
        if need.value != need.default:  # an absent key means the default already
            config[need.key] = need.value

    # switches of parts that llama.cpp computes where their tensors are there, such as biases
    for name, part in rules.present.items():
        config[name] = any(part in tensor for tensor in file.tensors)

    # The activation may have several names, such as "gelu_new | gelu_pytorch_tanh". The default of
    # the class is preferred where it is one of them.
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
    # "a * b". With the values from the file these are equations, which are solved for the config
    # keys: {"a * b": 6, "a": 2} gives a = 2 and b = 3.
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

    # what the absence of a key means; TOML has no null, so "none" stands for it. Names of `fixed`
    # are keys of GGUF, and no settings of a config.
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

    # transformers reads these names under layer_types, one for each layer; families with
    # `layer_flags` have layers of another type, such as linear_attention, which do not rotate
    only_some_have_windows = bool(sizes) and None in spec.windows
    if rules.window == "pattern" or only_some_have_windows:
        config["layer_types"] = [
            "full_attention" if size is None else "sliding_attention" for size in spec.windows
        ]
    for type_without_rope in rules.layer_flags.values():
        config["layer_types"] = [
            type_without_rope if kind == "none" else "full_attention" for kind in spec.layers
        ]

    # a list such as no_rope_layers, with 1 for layers that rotate
    if family.layers.flags:
        config[family.layers.flags] = [int(kind != "none") for kind in spec.layers]
    return config


def _shortest(value: Any) -> float:
    """The shortest decimal number that is the same in 32 bits."""
    return float(str(np.float32(value)))
