"""Carriers: other architectures of llama.cpp that compute the same network and take any frequency vector."""

from __future__ import annotations

import re

from ...errors import UnsupportedBake
from ...formats.gguf import Change, Edit, u32
from ...formats.gguf.interleave import interleave
from ...runtimes.llamacpp import arch_of_header, arch_table
from .gguf_model import GgufModel

NOTE = "the file becomes the GGUF architecture {to}: people see that name, and a later llama.cpp may treat it otherwise"


def carry(model: GgufModel, to: str) -> Edit:
    """Return the edit that turns a model into the architecture `to`, with its RoPE unchanged.

    Raises UnsupportedBake where the table of llama.cpp's architectures names no such carrier.
    """
    arch = arch_of_header(model)
    if to not in arch.carriers:
        known = ", ".join(f"--carrier {name}" for name in arch.carriers)
        raise UnsupportedBake(
            "this schedule",
            f"{arch.name} as {to or 'another architecture'}",
            "no such carrier is known",
            f"take {known}" if known else "theta, linear and yarn fit into its keys",
        )
    changes = {} if arch.pairs == arch_table().arch[to].pairs else _interleaved(model)
    return Edit({f"{to}.rope.dimension_count": u32(model.reading().spec.rotary_dim)}, arch=to, changes=changes)


def _interleaved(model: GgufModel) -> dict[str, Change]:
    """The changes that reorder rows of queries and keys from pairs (i, i + d/2) to (2i, 2i + 1), by tensor.

    Blocks of quantised weights are within rows, so that whole rows move and nothing is requantised.
    """
    prefix = model.get("general.architecture")
    heads = model.get(f"{prefix}.attention.head_count")
    kv = model.get(f"{prefix}.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(kv, int):
        raise UnsupportedBake("this schedule", "a carrier", "its layers have different heads", "choose another method")
    if any(".attn_qkv." in name for name in model.tensors):
        raise UnsupportedBake("this schedule", "a carrier", "its projections are fused", "choose another method")
    head_dim = model.reading().spec.head_dim
    return {
        name: interleave(info, head_dim)
        for name, info in model.tensors.items()
        if re.search(r"\.attn_[qk]\.(weight|bias)$", name)
    }
