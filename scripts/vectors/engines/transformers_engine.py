"""Packets in the stock classes of transformers, in float32."""

from pathlib import Path

import torch
import transformers
from answering import Logits, answer


def version() -> str:
    """Return names and versions."""
    return f"transformers {transformers.__version__}, torch {torch.__version__}"


def open_model(packet: Path) -> Logits:
    """Return the logits of a packet's model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(packet / "model", dtype=torch.float32)

    def logits(ids: list[int]) -> object:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids])).logits[0].numpy()

    return logits


answer(version, open_model)
