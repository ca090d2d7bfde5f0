"""llama.cpp: one buffer for the cache, and one that every step of a graph shares."""

from __future__ import annotations

from ....formats.gguf.header import TYPES, TensorType
from ....models.config import CachedLayers
from ..machine import GIB, Machine
from ..runtime import RuntimeMemory, count_cached_numbers, in_bytes, pad, register
from ..shape import ModelShape

CELLS = 256
"""llama-context.cpp: n_ctx is a multiple of 256, and so is the cache of layers with a window
(llama-kv-cache-iswa.cpp).
"""
MICRO_BATCH = 512
"""common.h: n_ubatch, the tokens of a step."""
SLOTS = 4
"""server.cpp: llama-server keeps 4 sequences in one unified cache, so 4 windows."""
MARGIN = GIB
"""common.h: fit_params_target, the memory of a GPU that llama.cpp leaves free."""
FLOAT = 4
HALF = 2


@register(order=4)
class LlamaCppMemory(RuntimeMemory):
    """llama-server with its usual options: flash attention, 4 slots, steps of 512 tokens.

    The cache has K and V of every layer for `pad(tokens, 256)` cells, and of layers with a window
    for `pad(min(tokens, 4 window + 512), 256)` cells. With multi-head latent attention it has no V.

    The compute buffer is reserved for the largest step: the logits of 512 tokens, or a layer with
    its mask. ggml reuses the memory of tensors that are not needed any more (ggml-alloc.c).
    """

    name = "llama-cpp"
    display_name = "llama.cpp"
    format = "gguf"
    source = (
        "llama.cpp 2026.10: llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-context.cpp"
        " (sched_reserve), llama-graph.cpp (build_attn_mha)"
    )
    measured = True
    cache_options = {
        "q8_0": "--cache-type-k q8_0 --cache-type-v q8_0",
        "q5_1": "--cache-type-k q5_1 --cache-type-v q5_1",
        "q5_0": "--cache-type-k q5_0 --cache-type-v q5_0",
        "q4_1": "--cache-type-k q4_1 --cache-type-v q4_1",
        "q4_0": "--cache-type-k q4_0 --cache-type-v q4_0",
        "f32": "--cache-type-k f32 --cache-type-v f32",
    }

    def cache_types(self, shape: ModelShape) -> dict[str, TensorType]:
        by_name = {kind.name.lower(): kind for kind in TYPES.values()}
        return {name: by_name[name] for name in ("f16", *self.cache_options)}

    def cells(self, tokens: int, window: int | None) -> int:
        """Return the number of tokens that a layer can keep.

        Args:
            tokens: The context.
            window: The tokens that the layer sees; None for all.
        """
        context = pad(tokens, CELLS)
        if window is None:
            return context
        step = min(MICRO_BATCH, context)
        return pad(min(context, SLOTS * window + step), CELLS)

    def cache(self, shape: ModelShape, tokens: int, dtype: TensorType, machine: Machine) -> int:
        def kept(group: CachedLayers) -> int:
            return self.cells(tokens, group.window)

        return in_bytes(count_cached_numbers(shape.layers, kept), dtype)

    def activations(self, shape: ModelShape, tokens: int, machine: Machine) -> int:
        step = min(MICRO_BATCH, pad(tokens, CELLS))
        hidden = FLOAT * shape.hidden

        # the end of the graph: the last hidden state, its norm, and the logits
        logits = FLOAT * shape.vocabulary + 2 * hidden

        # a layer: a mask for each kind of cache in float16, and attention or the MLP in float32
        mask = 0
        for window in {group.window for group in shape.layers}:
            mask += HALF * self.cells(tokens, window)
        layer = mask + 3 * hidden + max(_attention(shape), _mlp(shape))
        return step * max(logits, layer)


def _attention(shape: ModelShape) -> int:
    """Return the bytes of queries, keys and values for one token, beside the hidden states."""
    if shape.latent is None:
        return FLOAT * (2 * shape.queries + shape.keys + shape.values)
    # the queries, their part without rotation, that part in the space of the latent vector, and
    # the concatenation with the part that rotates
    latent = shape.latent
    absorbed = latent.nope + latent.rank + latent.rank + latent.rope
    return FLOAT * (shape.queries + shape.heads * absorbed)


def _mlp(shape: ModelShape) -> int:
    """Return the bytes of an MLP or of the experts for one token, beside the hidden states."""
    tensors = 2 if shape.mlp_kind == "plain" else 3
    dense = tensors * shape.mlp
    # the results of all experts that a token passes through are kept until they are added
    experts = shape.experts * (3 * shape.expert_width + shape.hidden)
    return FLOAT * max(dense, experts)
