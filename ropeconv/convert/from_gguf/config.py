"""config.json from the keys of a GGUF file: the way back of `hparams`, from the same tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedBake
from ...formats.gguf.file import GgufFile
from ...models.family import Family, Gguf
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

LAYER = "model.layers.{layer}."
NAMES = (
    "model.embed_tokens", "model.norm", "lm_head",
    *(LAYER + name for name in (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
        "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.gate", "mlp.shared_expert_gate",
        "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj",
    )),
)  # fmt: skip
"""Names in the layout of Llama and Gemma, which most families have."""


def family_of(file: GgufFile) -> Family:
    """The family whose checkpoints become files like this one.

    Of several with the same architecture it is the one with the most keys that the file has. Raises UnsupportedBake for
    an architecture that no known conversion writes.
    """
    arch = file.get("general.architecture")
    back = [(family, family.gguf) for family in families() if family.gguf is not None and family.gguf.config]
    known = [(family, rules) for family, rules in back if rules.arch == arch]
    windows = {bool(rules.window) for _, rules in known}
    fitting = [(family, rules) for family, rules in known if _fits(rules, windows, file)]
    if not fitting:
        convertible = ", ".join(sorted({rules.arch for _, rules in back}))
        raise UnsupportedBake(
            f"a GGUF file of the architecture {arch}",
            "a checkpoint",
            f"only these are converted back: {convertible}",
            "take the checkpoint that it was made from",
        )
    return max(fitting, key=lambda one: len(one[1].u32))[0]


def _fits(rules: Gguf, windows: set[bool], file: GgufFile) -> bool:
    """Whether a file has the keys of a family. windows: whether those of this architecture have windows."""
    has_window = bool(file.get(f"{rules.arch}.attention.sliding_window"))
    needed = [key for key, text in rules.u32.items() if names_in(text) and text not in rules.absent]
    required = all(file.get(f"{rules.arch}.{key}") is not None for key in needed)
    fixed = all(_is(file.get(f"{rules.arch}.{key}", rules.absent.get(key)), at) for key, at in rules.fixed.items())
    return required and fixed and (len(windows) == 1 or has_window == bool(rules.window))


def _is(found: object, wanted: object) -> bool:
    """Whether a value of a header is the one of `fixed`, whose numbers become 32-bit floats in a file."""
    return bool(found == (float(np.float32(wanted)) if isinstance(wanted, float) else wanted))


def checkpoint_shapes(file: GgufFile, family: Family, layers: int) -> dict[str, Shape]:
    """The shapes of a checkpoint's tensors by name, in the order of the GGUF file. Rope tensors are left out.

    file: the model. family: that it is of. layers: their number. Raises UnsupportedBake for a tensor that the family
    does not have.
    """
    trace = _Trace(file, gguf_rules(family), gguf_names(gguf_rules(family).arch, layers))
    found = dict[str, _TracedKeys]()
    special, _ = family.hooks.gguf_variant(file.tensors)
    for stem in _expanded((*special, *trace.rules.names, *_merged(family, trace.rules), *NAMES), layers):
        for name in (stem, f"{stem}.weight", f"{stem}.bias"):
            traced = trace.forward(name)
            if traced is not None and not found.keys() & set(traced.targets):
                found |= dict.fromkeys(traced.targets, traced)
    shapes = dict[str, Shape]()
    for target in file.tensors:
        if target.startswith("rope_f"):
            continue
        if target not in found:
            raise UnsupportedBake(
                f"the tensor {target}",
                f"a checkpoint of {family.display_name}",
                "it has no counterpart there",
                "take the checkpoint that the file was made from",
            )
        shapes |= _unstacked(found[target], trace.rules)
    scalars = dict(trace.rules.scalars.values())
    return shapes | {LAYER.format(layer=number) + name: scalars[name] for number in range(layers) for name in scalars}


@dataclass(frozen=True)
class _TracedKeys:
    """A tensor of the checkpoint, or a stack of them. targets: the tensors in GGUF that it becomes."""

    name: str
    shape: Shape
    targets: tuple[str, ...]


@dataclass(frozen=True)
class _Trace:
    """What an export makes of names. rules: of the family. names: gguf-py's map."""

    file: GgufFile
    rules: Gguf
    names: TensorNameMap

    def forward(self, name: str, first: int = 0) -> _TracedKeys | None:
        """What a tensor of this name becomes by the conversions from `first` on; None where a part is not there."""
        for number, rule in enumerate(self.rules.convert[first:], first):
            if re.search(rule.match, name):
                made = [re.sub(rule.match, new, name) for new in rule.names] or [name]
                parts = [self.forward(one, number + 1) for one in made]
                known = [part for part in parts if part is not None]
                shape = shape_before(rule.how, [part.shape for part in known]) if len(known) == len(made) else None
                targets = tuple(target for part in known for target in part.targets)
                return None if shape is None else _TracedKeys(name, shape, targets)
        target = self.names.get_name(key=name, try_suffixes=(".weight", ".bias"))
        if target not in self.file.tensors:
            return None
        return _TracedKeys(name, tuple(reversed(self.file.tensors[target].shape)), (target,))


def _expanded(names: tuple[str, ...], layers: int) -> Iterator[str]:
    for name in names:
        yield from (name.format(layer=number) for number in range(layers if "{layer}" in name else 1))


def _merged(family: Family, rules: Gguf) -> tuple[str, ...]:
    """The names of stacks, as `stacked` has them, in every layer."""
    return tuple(family.weights.layer[0] + merged for merged in rules.stacked.values())


def _unstacked(traced: _TracedKeys, rules: Gguf) -> dict[str, Shape]:
    """The shapes of the tensors of a stack by name; that of the tensor itself for others."""
    for pattern, merged in rules.stacked.items():
        found = re.search(re.escape(merged) + r"(?=\.|$)", traced.name)
        if found:
            before, after = traced.name[: found.start()], traced.name[found.end() :]
            count, *shape = traced.shape
            names = [before + pattern.replace("{}", str(number)) + after for number in range(count)]
            return dict.fromkeys(names, tuple(shape))
    return {traced.name: traced.shape}


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
    _, variant = family.hooks.gguf_variant(file.tensors)
    config: Config = {**rules.config, "model_type": family.text_type, **variant}
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
