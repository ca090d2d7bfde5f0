"""SGLang: a pool of tokens, a smaller one for windows, and a reserve for all else."""

from __future__ import annotations

from ....formats.gguf.header import TensorType
from ....models.config import CachedLayers
from ..machine import GIB, Machine
from ..runtime import RuntimeMemory, in_bytes, numbers, register
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

        return in_bytes(numbers(shape.layers, kept), dtype)

    def activations(self, shape: ModelShape, tokens: int, machine: Machine) -> int:
        steps = (
            # memory of the GPU in GiB, tokens of a step, sequences of the graphs
            (20, 2048, 8),
            (35, 4096, 48),
            (60, 4096, 32),
            (160, 8192, 256),
        )
        step, graphs = 16384, 512
        for most, tokens_of_step, sequences in steps:
            if machine.bytes < most * GIB:
                step, graphs = tokens_of_step, sequences
                break
        reserved = (512 + step * 3 // 2 + 2 * graphs) * MIB
        if machine.bytes > 60 * GIB:
            reserved = max(reserved, 10 * GIB)
        return reserved
