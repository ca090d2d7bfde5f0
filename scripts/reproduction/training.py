"""Small Llama models, trained from scratch and always the same by seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ropeconv

from .text import Ids

CUE, PASSAGE = 4, 16  # tokens that are given of a copied passage, and of the whole passage, which is longer in training


PARAMETER = {"theta": "base"}
"""What the value of a method is called, where it is no factor."""


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    seed: of weights and data. base: rope_theta. length: of the windows in tokens. tokens: of a step. steps: of AdamW.
    rate: the highest learning rate, after a tenth of the steps; it falls along a cosine to a tenth of it. copied: the
    share of windows that hold a passage of random tokens twice, which teaches small models within minutes to copy.
    log_n: train with queries times ln(p + 1) / ln(length).
    hidden, layers, heads: of the model; a head has hidden / heads dimensions.
    """

    seed: int = 0
    base: float = 10_000.0
    length: int = 128
    tokens: int = 2048
    steps: int = 600
    rate: float = 3e-3
    copied: float = 0.25
    log_n: bool = False
    hidden: int = 128
    layers: int = 4
    heads: int = 4

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def build(how: Training, vocabulary: int) -> Any:
    """An untrained model. how: its shape and seed. vocabulary: number of tokens."""
    torch.manual_seed(how.seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=how.hidden, intermediate_size=how.hidden * 8 // 3,
        num_hidden_layers=how.layers, num_attention_heads=how.heads, num_key_value_heads=how.heads,
        head_dim=how.head_dim, max_position_embeddings=how.length, tie_word_embeddings=True, use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": how.base},
    )  # fmt: skip
    return LlamaForCausalLM(config)


def recipe(how: Training, method: str = "theta", value: float | None = None, **modifiers: Any) -> ropeconv.Recipe:
    """A recipe for a trained model; log-n is over the length that it was trained with.

    how: its training. method: its name, by default the theta of the training. value: of the method. modifiers: of the
    recipe, and settings of the method.
    """
    names = set(ropeconv.Recipe.__dataclass_fields__)
    settings = {name: modifiers.pop(name) for name in list(modifiers) if name not in names}
    data: dict[str, Any] = {
        "method": method,
        "parameters": {PARAMETER.get(method, "factor"): how.base if value is None else value},
    }
    data["parameters"] |= settings
    return ropeconv.Recipe.from_dict(data | modifiers)


def train(
    how: Training, ids: Ids, vocabulary: int, device: str = "cpu", heard: Callable[[int, float], None] = print
) -> Any:
    """Trains a model and returns it without log-n, which its measures have to add again.

    how: everything that decides the result. ids: tokens to draw windows from. vocabulary: number of tokens. device: of
    torch. heard: called with step and loss in nats per token.
    """
    model = build(how, vocabulary).to(device).train()
    undo = ropeconv.patch(model, recipe(how, log_n="full")) if how.log_n else lambda: None
    draw = np.random.default_rng((how.seed, 1))
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], how.rate, (0.9, 0.98)
    )
    for step in range(how.steps):
        for group in optimizer.param_groups:
            group["lr"] = how.rate * rate_at(step, how.steps)
        batch = torch.from_numpy(windows(how, ids, vocabulary, draw)).to(device)
        loss = torch.nn.functional.cross_entropy(
            model(input_ids=batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten()
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 99 or step + 1 == how.steps:
            heard(step + 1, float(loss.detach()))
    undo()
    return model.eval()


def rate_at(step: int, steps: int) -> float:
    """The share of the highest learning rate: rising over a tenth of the steps, then half a cosine down to a tenth."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def windows(how: Training, ids: Ids, vocabulary: int, draw: np.random.Generator) -> Ids:
    """Windows of one step, int64 [tokens / length, length].

    how, ids, vocabulary: as in `train`. draw: random numbers.
    """
    count = how.tokens // how.length
    starts = draw.integers(0, len(ids) - how.length, count)
    found = np.stack([ids[start : start + how.length] for start in starts])
    for row in found[: round(how.copied * count)]:
        size = int(draw.integers(PASSAGE, how.length // 2 + 1))
        first = int(draw.integers(0, how.length - 2 * size + 1))
        second = int(draw.integers(first + size, how.length - size + 1))
        place(row, first, second, size, vocabulary, draw)
    return found


def place(row: Ids, first: int, second: int, size: int, vocabulary: int, draw: np.random.Generator) -> None:
    """Writes a passage of random tokens into a window twice, at the indices `first` and `second`.

    row: int64 [length], changed. size: of the passage in tokens. vocabulary: number of tokens. draw: random numbers.
    """
    passage = draw.integers(0, vocabulary, size)
    row[first : first + size] = passage
    row[second : second + size] = passage
