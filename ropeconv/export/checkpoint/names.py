"""The names of a checkpoint's tensors from those in GGUF: those of the family that become them in an export."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import UnsupportedBake
from ...families import Family
from ...families.gguf import Gguf, Variant
from ...families.registry import families
from ...formats.gguf import GgufFile
from ..expression import names_in
from ..hparams import gguf_rules
from ..tensors import gguf_names
from .shapes import Shape, shape_before

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


def _is(found: Any, wanted: Any) -> bool:
    """Whether a value of a header is the one of `fixed`, whose numbers become 32-bit floats in a file."""
    return bool(found == (float(np.float32(wanted)) if isinstance(wanted, float) else wanted))


def variants_of(file: GgufFile, rules: Gguf) -> list[Variant]:
    """The variants of a family that a file is of."""
    return [variant for variant in rules.variants if any(variant.present in name for name in file.tensors)]


def checkpoint_shapes(file: GgufFile, family: Family, layers: int) -> dict[str, Shape]:
    """The shapes of a checkpoint's tensors by name, in the order of the GGUF file. Rope tensors are left out.

    file: the model. family: that it is of. layers: their number. Raises UnsupportedBake for a tensor that the family
    does not have.
    """
    trace = _Trace(file, gguf_rules(family), gguf_names(gguf_rules(family).arch, layers))
    found = dict[str, _Traced]()
    special = [name for variant in variants_of(file, trace.rules) for name in variant.names]
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
    scalars = {name: (1,) if key in trace.rules.of_one else () for key, name in trace.rules.scalars.items()}
    return shapes | {LAYER.format(layer=number) + name: scalars[name] for number in range(layers) for name in scalars}


@dataclass(frozen=True)
class _Traced:
    """A tensor of the checkpoint, or a stack of them. targets: the tensors in GGUF that it becomes."""

    name: str
    shape: Shape
    targets: tuple[str, ...]


@dataclass(frozen=True)
class _Trace:
    """What an export makes of names. rules: of the family. names: gguf-py's map."""

    file: GgufFile
    rules: Gguf
    names: Any

    def forward(self, name: str, first: int = 0) -> _Traced | None:
        """What a tensor of this name becomes by the conversions from `first` on; None where a part is not there."""
        for number, rule in enumerate(self.rules.convert[first:], first):
            if re.search(rule.match, name):
                made = [re.sub(rule.match, new, name) for new in rule.names] or [name]
                parts = [self.forward(one, number + 1) for one in made]
                known = [part for part in parts if part is not None]
                shape = shape_before(rule.how, [part.shape for part in known]) if len(known) == len(made) else None
                targets = tuple(target for part in known for target in part.targets)
                return None if shape is None else _Traced(name, shape, targets)
        target = self.names.get_name(key=name, try_suffixes=(".weight", ".bias"))
        if target not in self.file.tensors:
            return None
        return _Traced(name, tuple(reversed(self.file.tensors[target].shape)), (target,))


def _expanded(names: tuple[str, ...], layers: int) -> Iterator[str]:
    for name in names:
        yield from (name.format(layer=number) for number in range(layers if "{layer}" in name else 1))


def _merged(family: Family, rules: Gguf) -> tuple[str, ...]:
    """The names of stacks, as `stacked` has them, in every layer."""
    return tuple(family.weights.layer[0] + merged for merged in rules.stacked.values())


def _unstacked(traced: _Traced, rules: Gguf) -> dict[str, Shape]:
    """The shapes of the tensors of a stack by name; that of the tensor itself for others."""
    for pattern, merged in rules.stacked.items():
        found = re.search(re.escape(merged) + r"(?=\.|$)", traced.name)
        if found:
            before, after = traced.name[: found.start()], traced.name[found.end() :]
            count, *shape = traced.shape
            names = [before + pattern.replace("{}", str(number)) + after for number in range(count)]
            return dict.fromkeys(names, tuple(shape))
    return {traced.name: traced.shape}
