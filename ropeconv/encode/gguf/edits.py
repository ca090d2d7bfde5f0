"""What the GGUF encodings share: a clean start, the attention factor key, contents of rope tensors."""

from __future__ import annotations

import numpy as np

from ...formats.gguf import Added, Change, Edit, f32, u32
from ...rope.forms import Vector
from ...rope.schedule import Schedule
from ...runtimes.llamacpp.read_header import ROPE_TENSORS
from .gguf_model import GgufModel

SCALING = (
    "type", "factor", "attn_factor", "original_context_length", "yarn_ext_factor", "yarn_attn_factor",
    "yarn_beta_fast", "yarn_beta_slow",
)  # fmt: skip
NEGLIGIBLE = 1e-7


def start(model: GgufModel, schedule: Schedule) -> Edit:
    """The declared context, and no trace of an earlier scaling: neither keys nor divisors other than one."""
    prefix = model.get("general.architecture")
    stale = {f"{prefix}.rope.scale_linear", *(f"{prefix}.rope.scaling.{key}" for key in SCALING)}
    if pinned_original(model):
        stale.remove(f"{prefix}.rope.scaling.original_context_length")
    ones = {name: overwrite(np.ones(len(vector))) for name, vector in model.vectors.items() if name in ROPE_TENSORS}
    return Edit({f"{prefix}.context_length": u32(schedule.context)}, frozenset(stale), changes=ones)


def pinned_original(model: GgufModel) -> int:
    """The original context, where it is also the length by which queries are scaled (Ministral 3); else 0."""
    prefix = model.get("general.architecture")
    if not model.get(f"{prefix}.attention.temperature_scale"):
        return 0
    return int(model.get(f"{prefix}.rope.scaling.original_context_length", 0))


def with_attention_factor(model: GgufModel, schedule: Schedule, edit: Edit) -> Edit:
    """Sets rope.scaling.attn_factor, which multiplies whatever attention factor the other keys give."""
    given = model.after(edit).reading().spec.attention_factor
    wanted = schedule.attention_factor / given
    if abs(wanted - 1) < NEGLIGIBLE:
        return edit
    key = f"{edit.arch or model.get('general.architecture')}.rope.scaling.attn_factor"
    return edit.merged(Edit({key: f32(wanted)}))


def overwrite(vector: Vector) -> Change:
    """A tensor of 32-bit floats with these numbers, whatever it held."""
    data = np.asarray(vector, "<f4").tobytes()
    return Change(len(data), lambda old: data)


def put_vector(model: GgufModel, name: str, vector: Vector) -> Edit:
    """A rope tensor: overwritten where it is there already, else appended."""
    if name in model.vectors:
        return Edit(changes={name: overwrite(vector)})
    return Edit(added=(Added.f32(name, np.asarray(vector, "<f4").tobytes()),))
