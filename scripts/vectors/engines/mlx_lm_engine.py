"""Packets in mlx-lm on a CPU, in float32."""

from importlib.metadata import version as installed
from pathlib import Path

import mlx.core as mx
import numpy as np
from answering import Logits, answer
from mlx_lm.utils import load_model


def version() -> str:
    """Return names and versions."""
    return f"mlx-lm {installed('mlx-lm')}, mlx {installed('mlx')} (CPU)"


def open_model(packet: Path) -> Logits:
    """Return the logits of a packet's model."""
    model, _ = load_model(packet / "model")

    def logits(ids: list[int]) -> object:
        return np.array(model(mx.array([ids]))[0].astype(mx.float32))

    return logits


answer(version, open_model)
