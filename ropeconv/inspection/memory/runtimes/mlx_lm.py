"""mlx-lm: a cache that grows by 256 tokens, and prompts in steps of 2,048."""

from __future__ import annotations

from ....formats.gguf.header import TensorType
from ....models.config import CachedLayers
from ...kv_cache import CACHE_DTYPES
from ..machine import Machine
from ..runtime import RuntimeMemory, count_cached_numbers, in_bytes, pad, register
from ..shape import ModelShape

STEP = 256
"""models/cache.py: KVCache.step."""
PREFILL = 2048
"""generate.py: prefill_step_size."""
QUANTISED = {
    # groups of 64 numbers, each with a scale and a bias of 16 bits (models/cache.py)
    "q8": TensorType("q8", 64, 64 + 4),
    "q4": TensorType("q4", 64, 32 + 4),
}


@register(order=5)
class MlxLmMemory(RuntimeMemory):
    """`mlx_lm.generate` with the usual cache.

    The cache has K and V for `pad(tokens, 256)` tokens (KVCache), and of layers with a window for
    the window and one step of the prompt (RotatingKVCache). A step has the residual, three hidden
    states and the three tensors of the MLP.
    """

    name = "mlx-lm"
    display_name = "mlx-lm"
    format = "folder"
    source = "mlx-lm 0.32: models/cache.py, generate.py (generate_step)"
    measured = False
    cache_options = {"q8": "--kv-bits 8", "q4": "--kv-bits 4"}

    def cache_types(self, shape: ModelShape) -> dict[str, TensorType]:
        dtype = self.compute_dtype(shape)
        return {dtype: CACHE_DTYPES.get(dtype, CACHE_DTYPES["bfloat16"]), **QUANTISED}

    def cache(self, shape: ModelShape, tokens: int, dtype: TensorType, machine: Machine) -> int:
        def kept(group: CachedLayers) -> int:
            if group.window is None:
                return pad(tokens, STEP)
            return min(tokens, group.window + PREFILL - 1)

        return in_bytes(count_cached_numbers(shape.layers, kept), dtype)

    def activations(self, shape: ModelShape, tokens: int, machine: Machine) -> int:
        step = min(PREFILL, tokens)
        dense = (2 if shape.mlp_kind == "plain" else 3) * shape.mlp
        experts = shape.experts * (3 * shape.expert_width + shape.hidden)
        return step * self.width(shape) * (4 * shape.hidden + max(dense, experts))
