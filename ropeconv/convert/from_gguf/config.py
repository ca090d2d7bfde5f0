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

TAKE_CHECKPOINT = "take the checkpoint that the file was made from"
LAYER = "model.layers.{layer}."
MODULES_OF_LAYER = (
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
NAMES = (
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    *(LAYER + name for name in MODULES_OF_LAYER),
)
"""Names in the layout of Llama and Gemma, which most families use."""


def family_of(file: GgufFile) -> Family:
    """Return the family of models, such as qwen2_moe, whose checkpoints become files like this one.

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

    # the families of this architecture; where some have sliding windows and others none, a window
    # in the file tells them apart
    of_arch = [(family, rules) for family, rules in convertible if rules.arch == arch]
    some_have_windows = any(rules.window for _, rules in of_arch)
    some_have_none = any(not rules.window for _, rules in of_arch)
    windows_differ = some_have_windows and some_have_none

    # The file must have all keys that the conversion of a family writes. Several families may fit,
    # since one may write the keys of another and more, so the one with the most keys is taken.
    fitting = []
    for family, rules in of_arch:
        if _has_keys_of(rules, windows_differ, file):
            fitting.append((family, len(rules.u32)))
    if fitting:
        family, _ = max(fitting, key=lambda family_and_keys: family_and_keys[1])
        return family

    archs = ", ".join(sorted({rules.arch for _, rules in convertible}))
    raise UnsupportedBake(
        f"a GGUF file of the architecture {arch}",
        "a checkpoint",
        f"only these are converted back: {archs}",
        TAKE_CHECKPOINT,
    )


def _has_keys_of(rules: Gguf, windows_differ: bool, file: GgufFile) -> bool:
    """Whether a file has the keys that the conversion of a family writes, with fitting values.

    A file of the architecture qwen3moe without qwen3moe.expert_count is not of the family
    qwen3_moe, for example.

    Args:
        rules: How checkpoints of the family become GGUF.
        windows_differ: Whether a sliding window tells the families of this architecture apart,
            since some have one and others do not.
        file: The GGUF file.
    """
    # Whole numbers that come from config keys, such as {"expert_count": "num_experts"}. A file may
    # lack constants, such as {"expert_shared_count": "1"}. It may also lack a number for whose
    # absence the family has a meaning: `absent` then has the config key, such as
    # {"first_k_dense_replace": 0}.
    for key, expression in rules.u32.items():
        is_constant = not names_in(expression)
        may_be_absent = expression in rules.absent
        is_there = file.get(f"{rules.arch}.{key}") is not None
        if not is_there and not is_constant and not may_be_absent:
            return False

    # Values that are the same for every model of the family. For a key of these that a file may
    # lack, `absent` has the value by the key of GGUF.
    for key, expected in rules.fixed.items():
        if isinstance(expected, float):
            expected = float(np.float32(expected))  # as a header has it: 0.1 is 0.10000000149
        value_without_key = rules.absent.get(key)
        value = file.get(f"{rules.arch}.{key}", value_without_key)
        if value != expected:
            return False

    # a window, if only some families of this architecture have one
    if not windows_differ:
        return True
    has_window = bool(file.get(f"{rules.arch}.attention.sliding_window"))
    needs_window = bool(rules.window)
    return has_window == needs_window


def checkpoint_shapes(file: GgufFile, family: Family, layers: int) -> dict[str, Shape]:
    """Return the shapes of a checkpoint's tensors by name, in the order of the GGUF file.

    The names in GGUF do not say from which tensors of a checkpoint they come. So this tries every
    name that a checkpoint of the family may have, and looks up which names it would get in GGUF:
    qkv, say, becomes attn_q and attn_k. Where the file has these, the checkpoint has a qkv.

    Args:
        file: The GGUF file.
        family: The family of the model.
        layers: The number of its layers.

    Raises:
        UnsupportedBake: For a tensor that the family does not have.
    """
    rules = gguf_rules(family)
    gguf_map = gguf_names(rules.arch, layers)

    # For each tensor of the file, the tensor of the checkpoint that it comes from, such as
    # {"blk.0.attn_q.weight": model.layers.0.self_attn.q_proj.weight}. Where several names of a
    # checkpoint become the same tensor, the first of them counts.
    origin_of = dict[str, _TracedTensor]()
    for module in _module_names(file, family, rules, layers):  # model.layers.0.self_attn.q_proj
        for name in (module, f"{module}.weight", f"{module}.bias"):
            traced = _trace(name, file, rules.convert, gguf_map)
            if traced is None:  # the file does not have what it would become
                continue
            names_in_file = traced.gguf_names
            is_known = any(gguf_name in origin_of for gguf_name in names_in_file)
            if not is_known:
                for gguf_name in names_in_file:
                    origin_of[gguf_name] = traced

    # the shapes of those tensors; one that stacks the experts of a layer gives one for each expert
    shapes = dict[str, Shape]()
    for gguf_name in file.tensors:
        if gguf_name.startswith("rope_f"):  # rope_freqs or rope_factors, which no checkpoint has
            continue
        if gguf_name not in origin_of:
            checkpoint = f"a checkpoint of {family.display_name}"
            raise UnsupportedBake(
                f"the tensor {gguf_name}",
                checkpoint,
                "it has no counterpart there",
                TAKE_CHECKPOINT,
            )
        shapes |= _unstack(origin_of[gguf_name], rules)

    # tensors with a single number in each layer, such as model.layers.3.mlp.act_fn.beta of Apertus,
    # which GGUF has as lists in metadata keys
    for number in range(layers):
        for name, shape in rules.scalars.values():
            shapes[LAYER.format(layer=number) + name] = shape
    return shapes


def _module_names(file: GgufFile, family: Family, rules: Gguf, layers: int) -> Iterator[str]:
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
    gguf_names: tuple[str, ...]
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
    # the first rule that changes this tensor, and the rules after it
    rule = None
    later_rules: tuple[Convert, ...] = ()
    for index, candidate in enumerate(rules):
        if re.search(candidate.match, name):
            rule = candidate
            later_rules = rules[index + 1 :]
            break

    # without a further rule, the tensor is in the file under its name in GGUF
    if rule is None:
        gguf_name = gguf_map.get_name(key=name, try_suffixes=(".weight", ".bias"))
        if gguf_name not in file.tensors:
            return None
        shape = tuple(reversed(file.tensors[gguf_name].shape))  # GGUF: fastest dimension first
        return _TracedTensor(name, shape, (gguf_name,))

    # The rule makes tensors with new names, such as q and k of qkv. The later rules may change them
    # further, so each is followed from there.
    new_names = [re.sub(rule.match, new_name, name) for new_name in rule.names]
    if not new_names:  # a rule may change the numbers only
        new_names = [name]
    parts = list[_TracedTensor]()
    for new_name in new_names:
        part = _trace(new_name, file, later_rules, gguf_map)
        if part is None:
            return None
        parts.append(part)

    # the shape before this rule, from the shapes after it
    shape_before_rule = shape_before(rule.how, [part.shape for part in parts])
    if shape_before_rule is None:
        return None
    gguf_names = list[str]()
    for part in parts:
        gguf_names += part.gguf_names
    return _TracedTensor(name, shape_before_rule, tuple(gguf_names))


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


READ_ELSEWHERE = re.compile(
    r"rope\.|context_length$|vocab_size$|attention\.((key|value)_length|sliding_window|temperature_)|"
    r"attention\.(head_count|head_count_kv)$|tensor_data_layout$"
)
"""Keys that are read with the RoPE, follow from others, or give the order of rows in all files."""
SPECIAL_TOKENS = ("bos", "eos", "padding")
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

    # what all checkpoints of the family have; some tensors show a variant, such as Falcon 40B with
    # a second norm in each layer
    _, settings_of_variant = family.hooks.gguf_variant(file.tensors)
    config: Config = {**rules.config, "model_type": family.text_type, **settings_of_variant}

    # what the keys of the file say, and what llama.cpp assumes without a key
    config |= _sizes(keys, family, rules)  # {"hidden_size": 4096, "num_attention_heads": 32, ...}
    config |= _settings(keys, rules)  # {"rms_norm_eps": 1e-6, "num_experts": 128, ...}
    config |= _assumed(file, rules, spec)  # {"hidden_act": "silu", "attention_bias": False, ...}
    if rules.scale_layers:
        # Gemma 27B scales queries by hidden_size / heads and not by the width of a head. llama.cpp
        # recognises it by its number of layers, and has no key (f_attention_scale).
        width = spec.head_dim
        if len(spec.layers) == rules.scale_layers:
            width = config["hidden_size"] // config["num_attention_heads"]
        config["query_pre_attn_scalar"] = width
    config |= _vocabulary(file, rules)  # {"vocab_size": 32000, "bos_token_id": 1, ...}
    config |= _layers(family, rules, spec)  # {"sliding_window": 4096, "layer_types": [...]}

    # Ministral 3 scales queries by position
    if spec.query_scaling is not None:
        beta = _shortest(spec.query_scaling.beta)
        config["rope_parameters"] = {"rope_type": "default", family.keys.query_beta: beta}
    config["torch_dtype"] = dtype

    # the RoPE that the file has now, written as for any other checkpoint
    rope_setting = native(spec.current(), spec, family)
    return bake_config(config, family, spec, rope_setting)


def _sizes(keys: ArchKeys, family: Family, rules: Gguf) -> Config:
    """The sizes that every GGUF file has, under their names in config.json: {"hidden_size": 4096}.

    Args:
        keys: The keys of the GGUF file.
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
    """
    # Usually {"embedding_length": "hidden_size", ...}. For a key of `rules.u32`, the family has
    # another name in config.json, which `_settings` handles.
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
    """The settings of a config for which GGUF has no key.

    For some, llama.cpp has one value in its code, such as {"hidden_act": "silu"}. Others show in
    the tensors of the file: {"attention_bias": true} where it has biases. The tables of the family
    (`rules`) have both.

    Args:
        file: The GGUF file.
        rules: How checkpoints of the family become GGUF.
        spec: The RoPE of the file.
    """
    # Values that llama.cpp has in its code, such as use_qk_norm = false for Command R with fewer
    # than 64 layers. The default of the class is left out.
    config: Config = {}
    for assumption in rules.need:
        is_for_small_models = assumption.below_layers > 0
        if is_for_small_models and len(spec.layers) >= assumption.below_layers:
            continue
        if assumption.value != assumption.default:
            config[assumption.key] = assumption.value

    # Switches of parts that llama.cpp computes where their tensors are there: {"attention_bias":
    # "attn_q.bias"} means that attention_bias is true with such a tensor.
    for switch, tensor_part in rules.present.items():
        config[switch] = any(tensor_part in tensor for tensor in file.tensors)

    # The activation, under the key `act_key`, usually hidden_act. `act` may have several names of
    # it, such as "gelu_new | gelu_pytorch_tanh". The default of the class is preferred where it is
    # one of them, else the first name.
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
    for name in SPECIAL_TOKENS:
        # "padding" is pad_token_id in a config
        key = f"{name.removesuffix('ding')}_token_id"
        config[key] = file.get(f"tokenizer.ggml.{name}_token_id")
    return config


def _settings(keys: ArchKeys, rules: Gguf) -> Config:
    """The settings of a config that have a key in GGUF, {"num_experts": 128, ...}.

    Args:
        keys: The keys of the GGUF file.
        rules: How checkpoints of the family become GGUF.
    """
    # An export computed each value by an expression over config keys, such as "num_experts" or
    # "a * b". `equations` has the value of each expression in the file, such as
    # {"a * b": 6, "a": 2}. Solved for the config keys, they give a = 2 and b = 3.
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

    # A setting whose key the file lacks has the value of `absent`, such as
    # {"first_k_dense_replace": 0}. "none" stands for null there, since TOML has no null. Keys of
    # GGUF that a file may lack are in `absent` too. These are also in `fixed`, and are not settings
    # of a config.
    of_absent_keys: Config = {}
    for name, value in rules.absent.items():
        is_gguf_key = name in rules.fixed
        if not is_gguf_key:
            of_absent_keys[name] = None if value == "none" else value
    return of_absent_keys | solved


def _refuse_unread(file: GgufFile, family: Family, rules: Gguf) -> None:
    """Raise UnsupportedBake for a key of the file without a counterpart in a config of the family.

    Args:
        file: The GGUF file.
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
    """
    # The keys that are converted: sizes, numbers, switches, flags of layers, and keys with a fixed
    # value. Any other key may change what the model computes, and the checkpoint would lack that.
    converted_keys = {
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
        # the keys of RoPE, windows and heads are read elsewhere
        if name in converted_keys or READ_ELSEWHERE.match(name):
            continue
        # a key that changes nothing at a certain value: {"expert_group_count": 1}, for example
        changes_nothing = name in rules.idle and file.get(key) == rules.idle[name]
        if not changes_nothing:
            checkpoint = f"a checkpoint of {family.display_name}"
            raise UnsupportedBake(
                f"{key} = {file.get(key)!r}",
                checkpoint,
                "its config has no setting for it",
                TAKE_CHECKPOINT,
            )


def _layers(family: Family, rules: Gguf, spec: RopeSpec) -> Config:
    """The settings of windows and of layers that do not rotate, {"sliding_window": 4096, ...}.

    Args:
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
        spec: The RoPE of the file. `windows` has a size in tokens or None for each layer, and
            `layers` has "none" for layers that do not rotate.
    """
    config: Config = {}

    # the window in tokens, such as sliding_window = 4096; null where no layer has one
    window_sizes = [size for size in spec.windows if size is not None]
    if family.window.key:
        window = None
        if window_sizes and rules.window:
            window = window_sizes[0]  # all layers with a window have the same
        config[family.window.key] = window
    # A switch such as Qwen 2's use_sliding_window is off, since llama.cpp computes these models
    # without a window.
    if family.window.switch:
        config[family.window.switch] = False

    # transformers reads the type of each layer under layer_types. Qwen 3.5 has layers of linear
    # attention, which do not rotate: {"attention.recurrent_layers": "linear_attention"}. Such
    # families have one entry in `layer_flags`. In others, some layers may have a window.
    only_some_have_windows = bool(window_sizes) and None in spec.windows
    if rules.layer_flags:
        type_without_rope = list(rules.layer_flags.values())[-1]
        config["layer_types"] = [
            type_without_rope if kind == "none" else "full_attention" for kind in spec.layers
        ]
    elif rules.window == "pattern" or only_some_have_windows:
        config["layer_types"] = [
            "full_attention" if size is None else "sliding_attention" for size in spec.windows
        ]

    # a list such as no_rope_layers, with 1 for layers that rotate
    if family.layers.flags:
        config[family.layers.flags] = [int(kind != "none") for kind in spec.layers]
    return config


def _shortest(value: Any) -> float:
    """The shortest decimal number that is the same in 32 bits."""
    return float(str(np.float32(value)))
