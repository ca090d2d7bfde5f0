"""step35 as a carrier of Qwen 2, Qwen 3 and Qwen 3 MoE: its full layers take rope_freqs, without moving any row.

It halves rope.dimension_count on its full layers and insists on some window layer, so one is declared beyond the last,
as a layer of multi-token prediction, whose tensors may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....formats.gguf import Added, Edit, boolean, u32
from ....formats.gguf.types import F32
from ....formats.gguf.values import bools
from ..gguf_model import GgufModel
from .carrier import carrier, own_output

SHARED = 32  # width of the shared experts
SOFTMAX = 1
TO = "step35"


@carrier("qwen2", TO)
@carrier("qwen3", TO)
@carrier("qwen3moe", TO)
def as_step35(model: GgufModel) -> Edit:
    """The edit for a model as step35: keys that it requires, and shared experts of zeros for models with experts."""
    prefix, head_dim = model.get("general.architecture"), model.reading().spec.head_dim
    layers = model.get(f"{prefix}.block_count")
    values = {
        f"{TO}.block_count": u32(layers + 1),
        f"{TO}.nextn_predict_layers": u32(1),
        f"{TO}.rope.dimension_count": u32(2 * head_dim),
        f"{TO}.rope.dimension_count_swa": u32(head_dim),
        f"{TO}.attention.sliding_window": u32(4096),
        f"{TO}.expert_gating_func": u32(SOFTMAX),
        f"{TO}.expert_weights_norm": boolean(True),
        f"{TO}.attention.sliding_window_pattern": bools([False] * layers + [True]),
    }
    if any(".ffn_gate_exps." in name for name in model.tensors):
        values[f"{TO}.expert_shared_feed_forward_length"] = u32(SHARED)
    else:
        values[f"{TO}.expert_feed_forward_length"] = u32(model.get(f"{prefix}.feed_forward_length"))
    return Edit(values, arch=TO, added=(*own_output(model), *_shared_experts(model, layers)))


def _shared_experts(model: GgufModel, layers: int) -> tuple[Added, ...]:
    width = model.tensors["token_embd.weight"].shape[0]
    shapes = {"ffn_gate_shexp": (width, SHARED), "ffn_up_shexp": (width, SHARED), "ffn_down_shexp": (SHARED, width)}

    def zeros() -> Iterator[bytes]:
        yield bytes(4 * width * SHARED)

    return tuple(
        Added(f"blk.{layer}.{name}.weight", shape, F32, zeros)
        for layer in range(layers)
        if f"blk.{layer}.ffn_gate_exps.weight" in model.tensors
        for name, shape in shapes.items()
    )
