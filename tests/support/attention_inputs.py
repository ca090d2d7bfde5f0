"""The queries and keys that attention is given in the installed transformers, for gaussian hidden
states.
"""

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from ropeconv.models.registry import by_model_type

from .models import auto_class

BATCH, LENGTH = 64, 64


def lively_weights(folder: Path) -> Path:
    """Gives the projections of a checkpoint rows of different sizes, and its norms and biases
    values of their own.
    """
    import safetensors.torch

    generator = torch.Generator().manual_seed(0)
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for name, tensor in tensors.items():
        is_norm = "norm" in name.replace("norm_attn_norm", "") or "ln_" in name  # a block of DBRX
        if tensor.ndim == 2 and ("attn" in name or "attention" in name) and not is_norm:
            tensor *= torch.exp(0.6 * torch.randn(len(tensor), 1, generator=generator))
        elif is_norm:
            tensor += torch.rand(tensor.shape, generator=generator) - 0.3
        elif name.endswith(".bias"):
            tensor += torch.randn(tensor.shape, generator=generator)
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    return folder


def attention_inputs(folder: Path) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Queries and keys, float64 [heads, tokens, head_dim], by the number of the layer, as attention
    is given them.

    Every layer gets hidden states of its own, independent and gaussian, and all tokens are at
    position 0.
    """
    from transformers import AttentionInterface
    from transformers.models.falcon import modeling_falcon
    from transformers.models.gpt_neox_japanese.modeling_gpt_neox_japanese import (
        GPTNeoXJapaneseAttention,
    )

    inputs: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def keep(layer: int, *both: torch.Tensor) -> None:
        query, key = (
            tensor.detach().double().transpose(0, 1).flatten(1, 2).numpy() for tensor in both
        )
        inputs[layer] = query, key

    def attention(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **more: Any,
    ) -> Any:
        keep(module.layer_idx * len(stacks) + stack_of.get(id(module), 0), query, key)
        return (
            value.repeat_interleave(query.shape[1] // value.shape[1], 1)
            .transpose(1, 2)
            .contiguous(),
            None,
        )

    def rotation(query: torch.Tensor, key: torch.Tensor, *rest: Any, **named: Any) -> Any:
        keep(len(inputs), *rotate(query, key, *rest, **named))
        return rotate(query, key, *rest, **named)

    def weighted(module: Any, query: torch.Tensor, key: torch.Tensor, *rest: Any) -> Any:
        keep(module.layer_idx, query, key)
        return weigh(module, query, key, *rest)

    AttentionInterface.register("recorded", attention)
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    patched = model_type in (
        "falcon",
        "gpt_neox_japanese",
    )  # their attention is no entry of the interface
    options = {
        "attn_implementation": "eager" if patched else "recorded",
        "experts_implementation": "eager",
    }
    model = auto_class(model_type).from_pretrained(folder, dtype=torch.float32, **options).eval()
    generator = torch.Generator().manual_seed(1)

    def gaussian(module: Any, arguments: Any, named: Any) -> Any:
        states = arguments[0] if arguments else named["hidden_states"]
        fresh = torch.randn(states.shape, generator=generator, dtype=states.dtype)
        return (
            ((fresh, *arguments[1:]), named)
            if arguments
            else (arguments, {**named, "hidden_states": fresh})
        )

    blocks = by_model_type()[model_type].hooks.blocks
    found_in = [
        (name, module)
        for name, module in model.named_modules()
        if not re.search("vision|protein", name)
    ]
    stacks = [module for name, module in found_in if re.search(r"\.(layers|h|blocks)$", name)]
    stacks = stacks[: max(1, len(blocks))]
    stack_of = {id(part): number for number, stack in enumerate(stacks) for part in stack.modules()}
    for layer in (layer for stack in stacks for layer in stack):
        layer.register_forward_pre_hook(gaussian, with_kwargs=True)
    ids = torch.randint(4, 300, (BATCH, LENGTH), generator=generator)
    rotate = modeling_falcon.apply_rotary_pos_emb
    weigh = GPTNeoXJapaneseAttention._attn
    with (
        mock.patch.object(modeling_falcon, "apply_rotary_pos_emb", rotation),
        mock.patch.object(GPTNeoXJapaneseAttention, "_attn", weighted),
        torch.no_grad(),
    ):
        model(
            input_ids=ids,
            position_ids=torch.zeros((BATCH, LENGTH), dtype=torch.long),
            use_cache=False,
        )
    return inputs
