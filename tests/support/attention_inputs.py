"""The queries and keys that attention is given in the installed transformers, for gaussian hidden
states.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from ropeconv.models.registry import by_model_type

from .models import auto_class

BATCH, LENGTH = 64, 64

Inputs = dict[int, tuple[np.ndarray, np.ndarray]]
"""Queries and keys, float64 [heads, tokens, head_dim], by the number of the layer."""

OWN_ATTENTION = ("falcon", "gpt_neox_japanese")
"""Model types whose attention is not called through `AttentionInterface`."""


def lively_weights(folder: Path) -> Path:
    """Gives the projections of a checkpoint rows of different sizes, and its norms and biases
    values of their own.
    """
    import safetensors.torch

    generator = torch.Generator().manual_seed(0)
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for name, tensor in tensors.items():
        # DBRX has a block "norm_attn_norm", whose name is in those of its projections too
        is_norm = "norm" in name.replace("norm_attn_norm", "") or "ln_" in name
        is_of_attention = "attn" in name or "attention" in name
        if is_norm:
            tensor += torch.rand(tensor.shape, generator=generator) - 0.3
        elif tensor.ndim == 2 and is_of_attention:
            tensor *= torch.exp(0.6 * torch.randn(len(tensor), 1, generator=generator))
        elif name.endswith(".bias"):
            tensor += torch.randn(tensor.shape, generator=generator)
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    return folder


def attention_inputs(folder: Path) -> Inputs:
    """Queries and keys of every layer of a checkpoint, as attention is given them.

    Every layer gets hidden states of its own, independent and gaussian, and all tokens are at
    position 0.
    """
    from transformers import AttentionInterface

    recorder = _Recorder()
    AttentionInterface.register("recorded", recorder.attend)

    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    model = auto_class(model_type).from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager" if model_type in OWN_ATTENTION else "recorded",
        experts_implementation="eager",
    )
    model.eval()

    recorder.stacks = _stacks_of_layers(model, model_type)
    generator = torch.Generator().manual_seed(1)
    give_gaussian = _give_gaussian_states(generator)
    for stack in recorder.stacks:
        for layer in stack:
            layer.register_forward_pre_hook(give_gaussian, with_kwargs=True)

    ids = torch.randint(4, 300, (BATCH, LENGTH), generator=generator)
    positions = torch.zeros((BATCH, LENGTH), dtype=torch.long)
    with _recording_own_attention(recorder), torch.no_grad():
        model(input_ids=ids, position_ids=positions, use_cache=False)
    return recorder.inputs


class _Recorder:
    """Keeps the queries and keys that the layers of a model give to attention."""

    def __init__(self) -> None:
        self.inputs: Inputs = {}
        self.stacks: list[torch.nn.Module] = []
        """The lists of layers of the model: one, or those of an encoder and a decoder."""

    def keep(self, layer: int, query: torch.Tensor, key: torch.Tensor) -> None:
        """Keep queries and keys, [texts, heads, tokens, head_dim], with all texts as one."""
        by_head = []
        for tensor in (query, key):
            heads_first = tensor.detach().double().transpose(0, 1)
            by_head.append(heads_first.flatten(1, 2).numpy())
        queries, keys = by_head
        self.inputs[layer] = queries, keys

    def attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        """Stand for the attention of a layer: keep its inputs, and give back the values."""
        self.keep(self._number_of(module), query, key)
        queries_per_key = query.shape[1] // value.shape[1]
        output = value.repeat_interleave(queries_per_key, 1)
        return output.transpose(1, 2).contiguous(), None

    def _number_of(self, module: Any) -> int:
        """The number of the layer of a module; those of an encoder and a decoder take turns."""
        for number, stack in enumerate(self.stacks):
            if any(part is module for part in stack.modules()):
                return module.layer_idx * len(self.stacks) + number
        return module.layer_idx * len(self.stacks)


def _stacks_of_layers(model: torch.nn.Module, model_type: str) -> list[torch.nn.Module]:
    """The lists of layers of a model, without those of parts for images or proteins."""
    stacks = []
    for name, module in model.named_modules():
        is_of_text = not re.search("vision|protein", name)
        if is_of_text and re.search(r"\.(layers|h|blocks)$", name):
            stacks.append(module)
    count = max(1, len(by_model_type()[model_type].hooks.blocks))
    return stacks[:count]


def _give_gaussian_states(generator: torch.Generator) -> Callable[[Any, Any, Any], Any]:
    """Make a hook that puts gaussian numbers in place of the hidden states which a layer gets."""

    def hook(module: Any, arguments: Any, named: Any) -> Any:
        states = arguments[0] if arguments else named["hidden_states"]
        fresh = torch.randn(states.shape, generator=generator, dtype=states.dtype)
        if arguments:
            return (fresh, *arguments[1:]), named
        return arguments, {**named, "hidden_states": fresh}

    return hook


@contextmanager
def _recording_own_attention(recorder: _Recorder) -> Iterator[None]:
    """Let the classes of OWN_ATTENTION give their queries and keys to a recorder too."""
    from transformers.models.falcon import modeling_falcon
    from transformers.models.gpt_neox_japanese.modeling_gpt_neox_japanese import (
        GPTNeoXJapaneseAttention,
    )

    rotate = modeling_falcon.apply_rotary_pos_emb
    attend = GPTNeoXJapaneseAttention._attn

    def rotate_and_keep(query: torch.Tensor, key: torch.Tensor, *rest: Any, **named: Any) -> Any:
        rotated = rotate(query, key, *rest, **named)
        next_layer = len(recorder.inputs)  # Falcon rotates once in each layer
        recorder.keep(next_layer, *rotated)
        return rotated

    def keep_and_attend(module: Any, query: torch.Tensor, key: torch.Tensor, *rest: Any) -> Any:
        recorder.keep(module.layer_idx, query, key)
        return attend(module, query, key, *rest)

    with (
        mock.patch.object(modeling_falcon, "apply_rotary_pos_emb", rotate_and_keep),
        mock.patch.object(GPTNeoXJapaneseAttention, "_attn", keep_and_attend),
    ):
        yield
