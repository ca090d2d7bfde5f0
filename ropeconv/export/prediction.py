"""Layers that predict further tokens (MTP), which follow the others in some checkpoints and in some architectures."""

from __future__ import annotations

import re
from collections.abc import Iterable

LAYER = re.compile(r"^model\.layers\.(\d+)\.")
APART = re.compile(r"^(?:model\.)?mtp\.(?:layers\.(\d+)\.)?")
PARTS = {
    "fc.": "eh_proj.",
    "pre_fc_norm_embedding.": "enorm.",
    "pre_fc_norm_hidden.": "hnorm.",
    "norm.": "shared_head.norm.",
}
"""The beginnings of names in Qwen's `mtp`, and what the other families call them."""
OTHERS = re.compile(r"^model\.mtp_")  # ERNIE 4.5: mtp_block, mtp_emb_norm, mtp_hidden_norm, mtp_linear_proj

OWN = {
    "eh_proj": "eh_proj",
    "embed_tokens": "embed_tokens",
    "enorm": "enorm",
    "hnorm": "hnorm",
    "shared_head.head": "shared_head_head",
    "shared_head.norm": "shared_head_norm",
}
"""What only such a layer has, and its name in GGUF behind `nextn.`; gguf 0.19 does not know it for Qwen."""


def gguf_name(name: str) -> str | None:
    """The name in GGUF of a tensor that only a layer that predicts further tokens has; None for others."""
    layer = LAYER.match(name)
    part = name[layer.end() :].removesuffix(".weight") if layer else ""
    return f"blk.{layer[1]}.nextn.{OWN[part]}.weight" if layer and part in OWN else None


def as_layer(name: str, layers: int) -> str:
    """The name of a tensor, with those of Qwen's `mtp` as of a layer behind the others. layers: without these."""
    apart = APART.match(name)
    if apart is None:
        return name
    rest = name[apart.end() :]
    if apart[1] is None:
        start = next((part for part in PARTS if rest.startswith(part)), "")
        rest = PARTS.get(start, "") + rest.removeprefix(start)
    return f"model.layers.{layers + int(apart[1] or 0)}.{rest}"


def predicts(name: str, layers: int) -> bool:
    """Whether a tensor, named as by `as_layer`, is of a layer that predicts further tokens."""
    layer = LAYER.match(name)
    return bool(OTHERS.match(name)) or (layer is not None and int(layer[1]) >= layers)


def count_layers(names: Iterable[str], layers: int) -> int:
    """How many layers follow the others. names: of tensors, as by `as_layer`. layers: without these."""
    found = (LAYER.match(name) for name in names)
    return max((int(layer[1]) + 1 - layers for layer in found if layer), default=0)
