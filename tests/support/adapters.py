"""LoRA adapters of tiny models, made and run by PEFT."""

from pathlib import Path
from typing import Any

import pytest

from .models import TRAINED


def lora(base: Path, folder: Path) -> Path:
    """Write an adapter with random weights for the model in a folder."""
    peft, torch, transformers = (
        pytest.importorskip(name) for name in ("peft", "torch", "transformers")
    )
    torch.manual_seed(0)
    chosen = peft.LoraConfig(
        r=4, target_modules=["q_proj", "k_proj", "v_proj"], init_lora_weights=False
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    peft.get_peft_model(model, chosen).save_pretrained(folder)
    return folder


def logits(base: Path, adapter: Path) -> Any:
    """Logits of PEFT's model beyond the trained context."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    tokens = torch.arange(2 * TRAINED)[None] % 97
    with torch.no_grad():
        return model(tokens).logits[0, TRAINED:]
