"""Carriers whose window is made wider than any context: qwen3 as exaone-moe, smollm3 as granite_swa."""

from __future__ import annotations

import struct

from ....formats.gguf import Added, Edit, f32, u32
from ....formats.gguf.values import bools
from ..gguf_model import GgufModel
from .carrier import carrier, own_output, query_heads, whole_rotation

WINDOW = 1 << 24  # the cache of window layers is counted in u32 times sequences, so it must not be much larger


@carrier("qwen3", "exaone-moe")
def qwen3_as_exaone_moe(model: GgufModel) -> Edit:
    """The edit for qwen3 as exaone-moe, which rotates in window layers only: every layer is one, with 2^24 tokens."""
    layers, to = model.get("qwen3.block_count"), "exaone-moe"
    values = {
        f"{to}.leading_dense_block_count": u32(layers),
        f"{to}.expert_feed_forward_length": u32(model.get("qwen3.feed_forward_length")),
        f"{to}.expert_gating_func": u32(2),
        f"{to}.expert_count": u32(1),
        f"{to}.expert_used_count": u32(1),
        f"{to}.attention.sliding_window": u32(WINDOW),
        f"{to}.attention.sliding_window_pattern": bools([True] * layers),
    }
    return Edit(values, arch=to, added=own_output(model)).merged(whole_rotation(model, to))


@carrier("smollm3", "granite_swa")
def smollm3_as_granite_swa(model: GgufModel) -> Edit:
    """The edit for smollm3 as granite_swa, which reads a pattern of layers that rotate; its sinks are set to -1e30."""
    seen, to = model.reading().spec, "granite_swa"
    none = struct.pack("<f", -1e30) * query_heads(model)
    values = {
        f"{to}.logit_scale": f32(1.0),
        f"{to}.attention.sliding_window": u32(WINDOW),
        f"{to}.attention.sliding_window_pattern": bools([True] * len(seen.layers)),
        f"{to}.attention.rope_pattern": bools([kind != "none" for kind in seen.layers]),
    }
    sinks = tuple(Added.f32(f"blk.{index}.attn_sinks.weight", none) for index in range(len(seen.layers)))
    return Edit(values, arch=to, added=sinks).merged(whole_rotation(model, to))
