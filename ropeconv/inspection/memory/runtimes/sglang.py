"""SGLang: a pool of tokens, a smaller one for windows, and a reserve for all else."""

from __future__ import annotations

from ....formats.gguf.header import TensorType
from ....models.config import CachedLayers
from ..machine import GIB, Machine
from ..runtime import RuntimeMemory, count_cached_numbers, in_bytes, register
from ..shape import ModelShape

WINDOW_SHARE = 0.8
"""fields/schedule.py: swa_full_tokens_ratio, the tokens of layers with a window."""
MIB = 1 << 20


@register(order=3)
class SglangMemory(RuntimeMemory):
    """`sglang serve --context-length N` for one sequence of N tokens.

    The pool has K and V of N tokens for layers that see everything, and of 0.8 N tokens for layers
    with a window, whatever that is (HybridSWAPoolConfigurator). The rest of the GPU is reserved by
    its size, and no model is profiled: 512 MiB, 1.5 MiB for each token of a step of the prompt, and
    2 MiB for each sequence of the graphs; at least 10 GiB on GPUs with more than 60 GiB
    (handle_gpu_memory_settings).
    """

    name = "sglang"
    display_name = "SGLang"
    format = "folder"
    source = "SGLang 0.5.23: srt/model_executor/pool_configurator.py, srt/arg_groups/memory_hook.py"
    measured = False
    cache_options = {"fp8": "--kv-cache-dtype fp8_e4m3"}

    def cache(self, shape: ModelShape, tokens: int, dtype: TensorType, machine: Machine) -> int:
        def kept(group: CachedLayers) -> int:
            # models in which every layer has a window have one pool for all tokens
            if group.window is None or not shape.sees_everything:
                return tokens
            return int(WINDOW_SHARE * tokens)

        return in_bytes(count_cached_numbers(shape.layers, kept), dtype)

    def activations(self, shape: ModelShape, tokens: int, machine: Machine) -> int:
        """Return the bytes that SGLang reserves on a GPU for all but weights and cache."""
        # how many tokens of the prompt a step has, and of how many sequences CUDA graphs are kept,
        # by the memory of the GPU (handle_gpu_memory_settings)
        memory = machine.bytes
        if memory < 20 * GIB:
            tokens_of_step = 2048
            graph_sequences = 8
        elif memory < 35 * GIB:
            tokens_of_step = 4096
            graph_sequences = 48
        elif memory < 60 * GIB:
            tokens_of_step = 4096
            graph_sequences = 32
        elif memory < 160 * GIB:
            tokens_of_step = 8192
            graph_sequences = 256
        else:
            tokens_of_step = 16384
            graph_sequences = 512

        # 512 MiB, 1.5 MiB for each of these tokens, and 2 MiB for each of these sequences
        reserved = (512 + tokens_of_step * 3 // 2 + 2 * graph_sequences) * MIB
        if memory > 60 * GIB:
            return max(reserved, 10 * GIB)
        return reserved
