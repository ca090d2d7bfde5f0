"""vLLM: blocks of the cache in groups of layers, and a batch of tokens that was profiled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ....formats.gguf.header import TensorType
from ..machine import GIB, Machine
from ..runtime import RuntimeMemory, pad, register
from ..shape import Latent, ModelShape

UTILIZATION = 0.92
"""config/cache.py: gpu_memory_utilization, on a CPU the share of its RAM."""
MOST_CONCURRENT_BATCHES = 2
"""VllmConfig.max_concurrent_batches: asynchronous scheduling prepares a batch while one runs."""
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class _Group:
    """Layers that share the numbers of their blocks."""

    window: int | None
    layers: int


@register(order=2)
class VllmMemory(RuntimeMemory):
    """`vllm serve --max-model-len N` for one sequence of N tokens.

    The cache has blocks of 16 tokens (128 on most CPUs), and one block more that is never used.
    Layers with different windows are in groups of equally many layers, which share the pool: a
    block has the size of the largest group. A layer with a window keeps `window - 1` tokens and
    those of the batch, and one block more (SlidingWindowSpec).

    The activations are those of the largest batch (max_num_batched_tokens): the residual and three
    hidden states, and the MLP, of which the CPU build has one tensor more than the kernel
    `silu_and_mul`. On a GPU the logits of all sequences are profiled too, with the copies that the
    sampler makes (profile_run).
    """

    name = "vllm"
    display_name = "vLLM"
    format = "folder"
    source = (
        "vLLM 0.32: v1/kv_cache_interface.py, v1/core/kv_cache_utils.py"
        " (_max_memory_usage_bytes_from_groups), v1/worker/gpu_model_runner.py (profile_run)"
    )
    measured = True
    cache_options = {"fp8": "--kv-cache-dtype fp8"}

    def compute_dtype(self, shape: ModelShape) -> str:
        # config/model.py, _resolve_auto_dtype: float32 becomes a type of 16 bits
        return "bfloat16" if shape.dtype == "float32" else shape.dtype

    def weights(self, shape: ModelShape) -> int:
        size = shape.weights or 0
        return size // 2 if shape.dtype == "float32" else size

    def batched_tokens(self, machine: Machine) -> int:
        """Return max_num_batched_tokens of a server (arg_utils.py, by the memory of the GPU)."""
        if machine.on_cpu or machine.bytes < 70 * GIB:
            return 2048
        return 8192 if machine.bytes < 160 * GIB else 16384

    def sequences(self, machine: Machine) -> int:
        """Return max_num_seqs of a server."""
        return 256 if machine.bytes < 70 * GIB else 1024

    def cache(self, shape: ModelShape, tokens: int, dtype: TensorType, machine: Machine) -> int:
        """Return the bytes of all blocks of vLLM's key-value cache that a sequence needs."""
        # the tokens of a block: kernels of attention on a CPU have larger blocks, but not those of
        # multi-head latent attention (`latent`)
        block_tokens = 16
        if machine.on_cpu and shape.latent is None:
            block_tokens = 128

        # The bytes of a block. Layers with the same window are in groups, and a block has the keys
        # and values of all layers of a group. All groups take blocks from one pool, so a block is
        # large enough for the largest group.
        groups = group_layers(shape)
        numbers_in_layer = block_tokens * (shape.keys + shape.values)
        bytes_in_layer = numbers_in_layer * dtype.size // dtype.block  # `size` bytes per `block`
        block_bytes = max(group.layers for group in groups) * bytes_in_layer

        # The number of blocks. A layer with a window keeps the window, and the tokens of the
        # batches that are computed or prepared: one batch on a CPU, two on a GPU.
        batches = 1 if machine.on_cpu else MOST_CONCURRENT_BATCHES
        batched_tokens = batches * self.batched_tokens(machine)
        blocks = 1  # the null block, which is never used
        for group in groups:
            if group.window is None:
                blocks += pad(tokens, block_tokens) // block_tokens
            else:
                kept_tokens = min(group.window - 1 + batched_tokens, tokens)
                # one block more, since the first kept token may stand in the middle of a block
                # (SlidingWindowSpec in v1/kv_cache_interface.py)
                blocks += pad(kept_tokens, block_tokens) // block_tokens + 1
        return blocks * block_bytes

    def activations(self, shape: ModelShape, tokens: int, machine: Machine) -> int:
        """Return the bytes of the forward pass of a batch or, if larger, of the sampling."""
        width = self.width(shape)
        batch = min(self.batched_tokens(machine), tokens)
        mlp = width * _mlp(shape, machine.on_cpu)
        attention = width * _attention(shape, machine.on_cpu)
        if shape.latent is not None and machine.on_cpu:
            attention += _latent_scores(shape.heads, shape.latent, batch)
        forward = batch * (4 * width * shape.hidden + max(mlp, attention))
        if machine.on_cpu:
            return forward
        # the logits, in float32 too, and for top-k and top-p their sorted values and indices
        sampling = (width + 3 * FLOAT32_BYTES + 2 * FLOAT32_BYTES) * shape.vocabulary
        return max(forward, min(self.sequences(machine), batch) * sampling)

    def usable(self, machine: Machine) -> int:
        return int(machine.bytes * UTILIZATION)


def group_layers(shape: ModelShape) -> list[_Group]:
    """Return the groups of layers as _get_kv_cache_groups_uniform_page_size makes them.

    Layers with equal windows are divided into groups of as many layers as the rarest kind has, or,
    where the kinds are about equally many, as the most frequent one. So 10 layers without a window
    and 52 with one are 1 group and 6 groups of 10 layers; the last group is not full.
    """
    counts = Counter[int | None]()  # by the window
    for layers in shape.layers:
        counts[layers.window] += layers.count
    rarest = min(counts.values())
    most_frequent = max(counts.values())
    are_about_equal = most_frequent < 1.5 * rarest
    group_size = most_frequent if are_about_equal else rarest

    groups = []
    for window, count in counts.items():
        number_of_groups = pad(count, group_size) // group_size
        groups += [_Group(window, group_size)] * number_of_groups
    return groups


def _attention(shape: ModelShape, on_cpu: bool) -> int:
    """Return the numbers of queries, keys and values for each token."""
    if shape.latent is not None:
        head = shape.latent.nope + shape.latent.rope
        return shape.heads * (2 * head + 2 * shape.latent.value)
    projected = shape.queries + shape.keys + shape.values
    if shape.query_norm and on_cpu:
        # the queries in float32 and their squares, which the kernel of a GPU does not write
        return projected + 2 * shape.queries + 4 * shape.queries
    return projected + 2 * shape.queries


def _latent_scores(heads: int, latent: Latent, batch: int) -> int:
    """Return the bytes of scores for each token, where torch has no kernel.

    These are two copies in float32 with a mask, beside queries, keys, values and results in
    float32.
    """
    vectors = 2 * (latent.nope + latent.rope) + 3 * latent.value
    return FLOAT32_BYTES * heads * vectors + 2 * FLOAT32_BYTES * heads * batch + batch


def _mlp(shape: ModelShape, on_cpu: bool) -> int:
    """Return the numbers of an MLP or of the experts for each token."""
    if shape.mlp_kind == "plain":
        dense = 2 * shape.mlp
    else:
        dense = (4 if on_cpu else 3) * shape.mlp
    if on_cpu:
        return dense  # a kernel computes the experts without tensors of torch
    # fused_moe.py: one buffer for both projections, which are not needed together, and one between
    experts = max(2 * shape.expert_width, shape.hidden) + shape.expert_width
    return max(dense, shape.experts * experts)
