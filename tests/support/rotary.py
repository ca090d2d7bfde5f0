"""The rotary modules of the installed transformers."""

from pathlib import Path

import numpy as np


def rotary(path: Path) -> tuple[np.ndarray, float]:
    """Frequencies and attention factor of transformers' own module for a config."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    module = LlamaRotaryEmbedding(LlamaConfig.from_pretrained(path.parent))
    return module.inv_freq.double().numpy(), float(module.attention_scaling)
