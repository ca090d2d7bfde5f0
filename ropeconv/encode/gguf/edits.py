"""Edits that the GGUF encodings share: removing an earlier scaling, the attention factor key, rope tensors."""

from __future__ import annotations

import numpy as np

from ...formats.gguf import Added, Change, Edit, f32, u32
from ...rope.forms import Vector
from ...rope.schedule import Schedule
from ...runtimes.llamacpp.read_header import ROPE_TENSORS
from .gguf_model import GgufModel

SCALING = (
    "type", "factor", "attn_factor", "original_context_length", "yarn_ext_factor", "yarn_attn_factor",
    "yarn_beta_fast", "yarn_beta_slow", "alpha",
)  # fmt: skip
NEGLIGIBLE = 1e-7


def start(model: GgufModel, schedule: Schedule) -> Edit:
    """The edit that declares the context and removes an earlier scaling: its keys, and divisors other than 1.

    Where the context is not the trained one, that is kept under rope.scaling.original_context_length. llama.cpp reads
    the key under every type and uses it for yarn, for two factor lists, and for query scaling (`pinned_original`) alone
    (src/llama-model.cpp:1410, ggml_rope_yarn).
    """
    prefix = model.get("general.architecture")
    stale = {f"{prefix}.rope.scale_linear", *(f"{prefix}.rope.scaling.{key}" for key in SCALING)}
    if pinned_original(model):
        stale.remove(f"{prefix}.rope.scaling.original_context_length")
    ones = {name: overwrite(np.ones(len(vector))) for name, vector in model.vectors.items() if name in ROPE_TENSORS}
    values = {f"{prefix}.context_length": u32(schedule.context)}
    if schedule.context != schedule.original_context and not pinned_original(model):
        values[f"{prefix}.rope.scaling.original_context_length"] = u32(schedule.original_context)
    return Edit(values, frozenset(stale - values.keys()), changes=ones)


def pinned_original(model: GgufModel) -> int:
    """The original context in tokens, where query scaling reads the same key (Ministral 3); else 0."""
    prefix = model.get("general.architecture")
    if not model.get(f"{prefix}.attention.temperature_scale"):
        return 0
    return int(model.get(f"{prefix}.rope.scaling.original_context_length", 0))


def with_attention_factor(model: GgufModel, schedule: Schedule, edit: Edit) -> Edit:
    """The edit with rope.scaling.attn_factor, which multiplies the attention factor that the other keys give.

    edit: all other changes of the encoding.
    """
    given = model.after(edit).reading().spec.attention_factor
    wanted = schedule.attention_factor / given
    if abs(wanted - 1) < NEGLIGIBLE:
        return edit
    key = f"{edit.arch or model.get('general.architecture')}.rope.scaling.attn_factor"
    return edit.merged(Edit({key: f32(wanted)}))


def overwrite(vector: Vector) -> Change:
    """The change that replaces a whole tensor of 32-bit floats by a vector of the same length."""
    data = np.asarray(vector, "<f4").tobytes()
    return Change(len(data), lambda old: data)


def put_vector(model: GgufModel, name: str, vector: Vector) -> Edit:
    """The edit that sets a rope tensor: overwritten where the model has it, else appended."""
    if name in model.vectors:
        return Edit(changes={name: overwrite(vector)})
    return Edit(added=(Added(name, np.asarray(vector, "<f4").tobytes()),))
