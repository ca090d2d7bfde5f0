"""Packets in llama.cpp, with keys and values in float32."""

from importlib.metadata import version as installed
from pathlib import Path

import llama_cpp
import numpy as np
from answering import Logits, answer

FLOAT32 = 0
"""GGML_TYPE_F32."""


def version() -> str:
    """Return names and versions."""
    return f"llama.cpp in llama-cpp-python {installed('llama-cpp-python')}"


def open_model(packet: Path) -> Logits:
    """Return the logits of a packet's GGUF file."""
    path = packet / "model.gguf"
    if not path.exists():
        raise FileNotFoundError("the packet has no GGUF file")

    def logits(ids: list[int]) -> object:
        # LongRoPE's list follows from the context of the whole process, so each prompt gets its own
        """Return the logits of a prompt, [tokens, vocabulary]."""
        model = llama_cpp.Llama(
            str(path),
            n_ctx=len(ids),
            n_batch=len(ids),
            n_ubatch=len(ids),
            logits_all=True,
            type_k=FLOAT32,
            type_v=FLOAT32,
            flash_attn=False,
            verbose=False,
        )
        model.eval(ids)
        return np.array(model.scores[: len(ids)])

    return logits


answer(version, open_model)
