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
    """Return the model family of a GGUF file, such as qwen2_moe.

    Files of several families can have the same general.architecture. They differ in their keys.

    Raises:
        UnsupportedBake: For an architecture that no known family has.
    """
    arch = file.get("general.architecture")

    # `family.gguf` has the rules by which checkpoints of the family become GGUF; rules that cannot
    # be inverted have an empty `config`
    invertible = []
    for family in families():
        if family.gguf is not None and family.gguf.config:
            invertible.append((family, family.gguf))
    of_arch = [(family, rules) for family, rules in invertible if rules.arch == arch]

    # where only some of the families have sliding windows, the family must agree with the file
    some_have_windows = any(rules.window for _, rules in of_arch)
    some_lack_windows = any(not rules.window for _, rules in of_arch)
    windows_differ = some_have_windows and some_lack_windows

    # The file must have all keys that an export of the family writes. Where this is true of several
    # families, the family with the most keys (`u32` lists keys with integers) is the right one: its
    # keys include the keys of the others.
    matching = []
    for family, rules in of_arch:
        if _has_keys_of(rules, windows_differ, file):
            number_of_keys = len(rules.u32)
            matching.append((family, number_of_keys))
    if matching:
        family, _ = max(matching, key=lambda family_and_number: family_and_number[1])
        return family

    archs = ", ".join(sorted({rules.arch for _, rules in invertible}))
    raise UnsupportedBake(
        f"a GGUF file of the architecture {arch}",
        "a checkpoint",
        f"only these are converted back: {archs}",
        TAKE_CHECKPOINT,
    )


def _has_keys_of(rules: Gguf, windows_differ: bool, file: GgufFile) -> bool:
    """Return whether a GGUF file has all keys of a family, with values that the family allows.

    For example, a file of the family qwen3_moe must have qwen3moe.expert_count.

    Args:
        rules: How checkpoints of the family become GGUF.
        windows_differ: Whether only some families of this architecture have sliding windows.
        file: The GGUF file.
    """
    # Keys with integers from the config: {"expert_count": "num_experts"} means that expert_count
    # has the value of num_experts.
    for key, expression in rules.u32.items():
        # a file may lack a constant, such as {"expert_shared_count": "1"}
        is_constant = not names_in(expression)
        # `absent` has the config's value for a file without the key: {"first_k_dense_replace": 0}
        has_default = expression in rules.absent
        is_in_file = file.get(f"{rules.arch}.{key}") is not None
        if not is_in_file and not is_constant and not has_default:
            return False

    # Keys with the same value in every model of the family. `absent` has a default for some of
    # these keys too, here by the name of the GGUF key.
    for key, expected in rules.fixed.items():
        if isinstance(expected, float):
            expected = float(np.float32(expected))  # GGUF stores float32: 0.1 is 0.10000000149
        default = rules.absent.get(key)
        value = file.get(f"{rules.arch}.{key}", default)
        if value != expected:
            return False

    # the sliding window
    if not windows_differ:
        return True
    has_window = bool(file.get(f"{rules.arch}.attention.sliding_window"))
    needs_window = bool(rules.window)
    return has_window == needs_window


def checkpoint_shapes(file: GgufFile, family: Family, layers: int) -> dict[str, Shape]:
    """Return the names and shapes of the tensors of a checkpoint that a GGUF file was made from.

    The file only has names of GGUF, such as blk.0.attn_q.weight. So each name that checkpoints of
    the family use is converted to GGUF: q_proj becomes attn_q, for example. If the file has
    attn_q, the checkpoint had q_proj.

    Args:
        file: The GGUF file.
        family: The family of the model.
        layers: The number of layers of the model.

    Returns:
        The shapes by the names of the tensors, in the order of the GGUF file.

    Raises:
        UnsupportedBake: For a tensor of the file that checkpoints of the family do not have.
    """
    rules = gguf_rules(family)  # how checkpoints of the family become GGUF
    gguf_map = gguf_names(rules.arch, layers)

    # For each tensor of the file, the tensor of the checkpoint that it was made from, such as
    # {"blk.0.attn_q.weight": model.layers.0.self_attn.q_proj.weight}. Of several possible names in
    # a checkpoint, the first counts.
    origin_of = dict[str, _TracedTensor]()
    for module in _module_names(file, family, rules, layers):  # model.layers.0.self_attn.q_proj
        for name in (module, f"{module}.weight", f"{module}.bias"):
            traced = _trace(name, file, rules.convert, gguf_map)
            if traced is None:  # the file has no tensor that this name becomes
                continue
            has_origin = any(gguf_name in origin_of for gguf_name in traced.gguf_names)
            if not has_origin:
                for gguf_name in traced.gguf_names:
                    origin_of[gguf_name] = traced

    # the shapes; a tensor with all experts of a layer becomes one tensor per expert (_unstack)
    shapes = dict[str, Shape]()
    for gguf_name in file.tensors:
        is_rope_tensor = gguf_name.startswith("rope_f")  # rope_freqs or rope_factors, only in GGUF
        if is_rope_tensor:
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

    # Apertus: a checkpoint has a tensor with one number in each layer, such as
    # model.layers.3.mlp.act_fn.beta, where GGUF has one metadata key with a list of all layers.
    # `scalars` has the name and the shape of such a tensor by that key.
    for layer in range(layers):
        for name, shape in rules.scalars.values():
            shapes[LAYER.format(layer=layer) + name] = shape
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
    # inverts `_stack_experts` of to_gguf/tensors.py: mlp.experts becomes mlp.experts.0, .1, ...
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
    # {"hidden_act": "silu", "attention_bias": False, ...}
    config |= _settings_without_key(file, rules, spec)
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
    """Return the sizes of a model by their names in config.json, such as {"hidden_size": 4096}.

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


def _settings_without_key(file: GgufFile, rules: Gguf, spec: RopeSpec) -> Config:
    """Return the settings of config.json that no metadata key of a GGUF file has.

    For example, {"hidden_act": "silu", "attention_bias": False}. They follow from the code of
    llama.cpp for this family, or from the tensors of the file.

    Args:
        file: The GGUF file.
        rules: How checkpoints of the family become GGUF.
        spec: The RoPE of the file, with the kind of each layer.
    """
    config: Config = {}

    # Values in the code of llama.cpp (rules.need), such as use_qk_norm = false for Command R with
    # fewer than 64 layers. A value that is the default of the class need not be written.
    for fixed in rules.need:
        is_for_small_models = fixed.below_layers > 0
        if is_for_small_models and len(spec.layers) >= fixed.below_layers:
            continue
        if fixed.value != fixed.default:
            config[fixed.key] = fixed.value

    # Switches that follow from the tensors (rules.present): with {"attention_bias": "attn_q.bias"},
    # attention_bias is true if the name of some tensor has "attn_q.bias" in it.
    for switch, part_of_name in rules.present.items():
        config[switch] = any(part_of_name in tensor for tensor in file.tensors)

    # The activation function (rules.act), which may have several names in transformers:
    # "gelu_new | gelu_pytorch_tanh". The default of the class is preferred, if it has such a name.
    if rules.act:
        names = rules.act.split(" | ")
        first_name = names[0]
        default = rules.defaults.get(rules.act_key)
        config[rules.act_key] = default if default in names else first_name
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
    """Return the settings of config.json that follow from metadata keys of a GGUF file.

    For example, the key qwen3moe.expert_count gives {"num_experts": 128}.

    Args:
        keys: The keys of the GGUF file.
        rules: How checkpoints of the family become GGUF. `u32`, `f32` and `flag` have an expression
            for each key with an integer, a float or a boolean: {"expert_count": "num_experts"}.
    """
    # The values of the expressions, as equations: {"a * b": 6, "a": 2} for the config keys "a" and
    # "b" gives the solution {"a": 2, "b": 3}.
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

    # The settings for keys that the file lacks, such as {"first_k_dense_replace": 0}. `absent` has
    # GGUF keys too, which are also in `fixed`; only config keys are needed here.
    defaults: Config = {}
    for name, value in rules.absent.items():
        is_config_key = name not in rules.fixed
        if is_config_key:
            defaults[name] = None if value == "none" else value  # TOML has no null
    return defaults | solved


def _refuse_unread(file: GgufFile, family: Family, rules: Gguf) -> None:
    """Raise UnsupportedBake for a metadata key that the config.json of the family cannot express.

    Such a key may change what the model computes, so a checkpoint without it would be wrong.

    Args:
        file: The GGUF file.
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
    """
    # the keys that are converted: sizes, integers, floats, booleans, lists of booleans by layer,
    # and keys with the same value in all models of the family
    converted_keys = {
        *SIZES,
        *rules.u32,
        *rules.f32,
        *rules.flag,
        *rules.layer_flags,
        *rules.fixed,
        family.layers.interval_key,
    }

    for key in file.header.values:  # such as "qwen3moe.expert_count"
        prefix, _, name = key.partition(".")
        if prefix != rules.arch:
            continue
        # READ_ELSEWHERE: keys of RoPE, windows and heads, which other functions read
        if name in converted_keys or READ_ELSEWHERE.match(name):
            continue
        # a value that changes nothing (rules.idle), such as {"expert_group_count": 1}
        value = file.get(key)
        if name in rules.idle and value == rules.idle[name]:
            continue

        checkpoint = f"a checkpoint of {family.display_name}"
        reason = "its config has no setting for it"
        raise UnsupportedBake(f"{key} = {value!r}", checkpoint, reason, TAKE_CHECKPOINT)


def _layers(family: Family, rules: Gguf, spec: RopeSpec) -> Config:
    """Return the settings of config.json on sliding windows and on the type of each layer.

    For example, {"sliding_window": 4096, "layer_types": ["sliding_attention", ...]}.

    Args:
        family: The family of the model.
        rules: How checkpoints of the family become GGUF.
        spec: The RoPE of the file. For each layer, `spec.windows` has the size of its window in
            tokens, or None without a window; `spec.layers` has "none" for a layer without RoPE.
    """
    config: Config = {}

    # The size of the window, the same in all layers with a window. It is null for a model without
    # windows, and for families whose windows llama.cpp does not compute (rules.window is empty).
    window_sizes = [size for size in spec.windows if size is not None]
    if family.window.key:
        has_window = bool(window_sizes) and bool(rules.window)
        config[family.window.key] = window_sizes[0] if has_window else None

    # Qwen 2: use_sliding_window is false, since llama.cpp computes these models without windows
    if family.window.switch:
        config[family.window.switch] = False

    # Qwen 3.5: layers of linear attention have no RoPE. `layer_flags` has one entry for such a
    # family, {"attention.recurrent_layers": "linear_attention"}.
    only_some_have_windows = bool(window_sizes) and None in spec.windows
    if rules.layer_flags:
        *_, type_without_rope = rules.layer_flags.values()
        config["layer_types"] = [
            type_without_rope if kind == "none" else "full_attention" for kind in spec.layers
        ]
    # Gemma 3: some layers have a window
    elif rules.window == "pattern" or only_some_have_windows:
        config["layer_types"] = [
            "full_attention" if size is None else "sliding_attention" for size in spec.windows
        ]

    # Llama 4: no_rope_layers is a list with 1 for each layer that rotates, and 0 for the others
    if family.layers.flags:
        config[family.layers.flags] = [int(kind != "none") for kind in spec.layers]
    return config


def _shortest(value: Any) -> float:
    """The shortest decimal number that is the same in 32 bits."""
    return float(str(np.float32(value)))
