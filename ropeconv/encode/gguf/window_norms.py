"""Undoes the attention factor in window layers that read the same key as the extended layers, through their norms.

In Gemma 3's graph rope.scaling.attn_factor also applies to the layers with a sliding window. Logits scale by a^2, a the
attention factor, and linearly by the query norm before the rotation, so that norm is multiplied by `1 / a^2`.
"""

from __future__ import annotations

import numpy as np

from ...errors import UnsupportedBake
from ...formats.gguf import Change, Edit, f32
from ...formats.gguf.types import F32
from ...runtimes.llamacpp.read_header import WINDOW_NORM
from .edits import NEGLIGIBLE
from .gguf_model import GgufModel


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
