"""Edits that the GGUF encodings share: removing an earlier scaling, the attention factor key, rope tensors.

Undoes the attention factor in window layers that read the same key as the extended layers, through their norms.

In Gemma 3's graph rope.scaling.attn_factor also applies to the layers with a sliding window. Logits scale by a^2, a the
attention factor, and linearly by the query norm before the rotation, so that norm is multiplied by `1 / a^2`.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import UnsupportedBake
from ..formats.gguf.edit import AddedTensor, Change, Edit, interleave
from ..formats.gguf.values import F32, f32, u32
from ..rope.lazy import Vector
from ..rope.schedule import Schedule
from ..runtimes.llamacpp.archs import arch_of_header, arch_table
from ..runtimes.llamacpp.read_header import ROPE_TENSORS, WINDOW_NORM
from .gguf_encoding import GgufModel

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
    return Edit(added=(AddedTensor(name, np.asarray(vector, "<f4").tobytes()),))


def take_back(model: GgufModel, edit: Edit) -> Edit:
    """The edit with changed norms, so that the window layers compute as with the attention factor 1.

    model: before the edit. edit: all other changes. Raises UnsupportedBake where window layers have no F32 query norm.
    """
    seen = model.after(edit).reading()
    attention_factor = seen.local_attention_factor
    if "local" not in seen.spec.layers or abs(attention_factor - 1) < NEGLIGIBLE:
        return edit
    before, whole = model.get(WINDOW_NORM, 1.0), seen.spec.rotary_dim == seen.spec.head_dim or seen.arch.halved
    changes = {}
    for index, kind in enumerate(seen.spec.layers):
        name = f"blk.{index}.attn_q_norm.weight"
        info = model.tensors.get(name)
        if kind != "local":
            continue
        if info is None or info.type != F32 or not whole:
            raise UnsupportedBake(
                "this attention factor",
                f"the GGUF architecture {seen.arch.name}",
                "its key would change the window layers too, and they have no F32 norm of what rotates to take it back",
                "choose an --attention-factor that leaves the key at 1 (for yarn its default)",
            )
        changes[name] = _scaled(info.size, attention_factor**-2)
    return edit.merged(Edit({WINDOW_NORM: f32(before / attention_factor)}, changes=changes))


def _scaled(size: int, factor: float) -> Change:
    return Change(size, lambda old: (np.frombuffer(old, "<f4") * np.float32(factor)).astype("<f4").tobytes())


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
    """The changes that reorder whole rows of queries and keys from pairs (i, i + d/2) to (2i, 2i + 1), by tensor."""
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
