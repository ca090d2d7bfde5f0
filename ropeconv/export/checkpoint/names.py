"""The names of a checkpoint's tensors from those in GGUF: those of the family that become them in an export."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...errors import UnsupportedBake
from ...families import Family
from ...families.gguf import Gguf
from ...families.registry import families
from ...formats.gguf import GgufFile
from ..hparams import gguf_rules
from ..tensors import gguf_names

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
    required = all(file.get(f"{rules.arch}.{key}") is not None for key in rules.u32)
    return required and (len(windows) == 1 or has_window == bool(rules.window))


def checkpoint_names(file: GgufFile, family: Family, layers: int) -> dict[str, tuple[str, ...]]:
    """Names in the checkpoint by name in GGUF; several for a tensor that is a stack. Rope tensors are left out.

    Raises UnsupportedBake for a tensor that the family does not have.
    """
    rules = gguf_rules(family)
    known = dict[str, str]()
    forward = gguf_names(rules.arch, layers)
    for name in _expanded((*rules.names, *_merged(family, rules), *NAMES), layers):
        target = forward.get_name(key=name)
        if target is not None:
            known.setdefault(target, name)
    found = {}
    for target, info in file.tensors.items():
        if target.startswith("rope_f"):
            continue
        stem, _, end = target.rpartition(".")
        if stem not in known:
            raise UnsupportedBake(
                f"the tensor {target}",
                f"a checkpoint of {family.display_name}",
                "it has no counterpart there",
                "take the checkpoint that the file was made from",
            )
        found[target] = tuple(f"{name}.{end}" for name in _unstacked(known[stem], rules, info.shape[-1]))
    return found


def _expanded(names: tuple[str, ...], layers: int) -> Iterator[str]:
    for name in names:
        yield from (name.format(layer=number) for number in range(layers if "{layer}" in name else 1))


def _merged(family: Family, rules: Gguf) -> tuple[str, ...]:
    """The names of stacks, as `stacked` has them, in every layer."""
    return tuple(family.weights.layer[0] + merged for merged in rules.stacked.values())


def _unstacked(name: str, rules: Gguf, count: int) -> list[str]:
    """The names of the tensors of a stack of `count`; the name itself for others."""
    for pattern, merged in rules.stacked.items():
        if re.search(re.escape(merged) + "$", name):
            return [name.removesuffix(merged) + pattern.replace("{}", str(number)) for number in range(count)]
    return [name]
