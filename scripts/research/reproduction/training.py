"""Small Llama models, trained from scratch and always the same by seed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

import ropeconv
from ropeconv.rope.forms import Plain

from .text import Ids

KINDS, VALUES = 4, 8  # of needles: each kind has a cue, and values that only needles have
RESERVED = KINDS * (1 + VALUES)
ASKED, WEIGHT = (
    3,
    10.0,
)  # how often each needle is asked for, and how much more its answer counts in the loss
SHORTEST = 8  # tokens that are repeated in a tiled window


PARAMETER = {"theta": "base"}
"""What the value of a method is called, where it is no factor."""


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    seed: of weights and data. base: rope_theta. length: of the windows in tokens. tokens: of a
    step. steps: of AdamW. rate: the highest learning rate, after a tenth of the steps; it falls
    along a cosine to a tenth of it. tiled: the share of windows that hold the beginning of a text
    again and again. needles: the share with a needle of each kind. log_n: train with queries times
    ln(p + 1) / ln(length). rotated: the share of each head that rotates. hidden, layers, heads: of
    the model; a head has hidden / heads dimensions.
    """

    seed: int = 0
    base: float = 10_000.0
    length: int = 128
    tokens: int = 1024
    steps: int = 800
    rate: float = 3e-3
    tiled: float = 0.25
    needles: float = 0.0
    log_n: bool = False
    rotated: float = 1.0
    hidden: int = 128
    layers: int = 3
    heads: int = 4

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def build(training: Training, vocabulary: int) -> Any:
    """An untrained model. training: its shape and seed. vocabulary: tokens of text; those of
    needles are added.
    """
    torch.manual_seed(training.seed)
    config = LlamaConfig(
        vocab_size=vocabulary + RESERVED,
        hidden_size=training.hidden,
        intermediate_size=3 * training.hidden,
        initializer_range=training.hidden**-0.5,
        num_hidden_layers=training.layers,
        num_attention_heads=training.heads,
        num_key_value_heads=training.heads,
        head_dim=training.head_dim,
        max_position_embeddings=training.length,
        tie_word_embeddings=True,
        use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": training.base},
    )
    return LlamaForCausalLM(config)


def recipe(
    training: Training, method: str = "theta", value: float | None = None, **modifiers: Any
) -> ropeconv.Recipe:
    """A recipe for a trained model; log-n is over the length that it was trained with.

    training: of the model. method: its name, by default the theta of the training. value: of the
    method. modifiers: of the recipe, and settings of the method.
    """
    names = set(ropeconv.Recipe.__dataclass_fields__)
    settings = {name: modifiers.pop(name) for name in list(modifiers) if name not in names}
    data: dict[str, Any] = {
        "method": method,
        "parameters": {PARAMETER.get(method, "factor"): training.base if value is None else value},
    }
    data["parameters"] |= settings
    return ropeconv.Recipe.from_dict(data | modifiers)


def frequencies(training: Training) -> NDArray[np.float64]:
    """The frequencies that a model is trained with, radians per token; 0 for pairs that do not
    rotate.
    """
    rotating = round(training.rotated * training.head_dim)
    return np.pad(Plain(training.base).inv_freq(rotating), (0, (training.head_dim - rotating) // 2))


def trained_with(training: Training) -> ropeconv.Recipe | None:
    """The recipe that a model is trained with, and has to be measured with; None where its config
    says all.
    """
    if training.rotated < 1:
        return ropeconv.Recipe.from_dict(
            {"method": "inv-freq", "parameters": {"inv_freq": frequencies(training).tolist()}}
        )
    return recipe(training, log_n="full") if training.log_n else None


def train(
    training: Training,
    ids: Ids,
    vocabulary: int,
    device: str = "cpu",
    heard: Callable[[int, float], None] = print,
    make: Callable[[Training, int], Any] = build,
) -> Any:
    """Trains a model and returns it without the recipe of `trained_with`, which its measures have
    to add again.

    training: everything that decides the result. ids: tokens to draw windows from. vocabulary:
    number of tokens. device: of torch. heard: called with step and loss in nats per token. make:
    the untrained model, from the training and the vocabulary.
    """
    model = make(training, vocabulary).to(device).train()
    method = trained_with(training)
    undo = ropeconv.patch(model, method) if method else lambda: None
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        training.rate,
        (0.9, 0.98),
    )
    optimise(
        model,
        optimizer,
        training,
        ids,
        vocabulary,
        np.random.default_rng((training.seed, 1)),
        heard,
    )
    undo()
    return model.eval()


def optimise(
    model: Any,
    optimizer: torch.optim.Optimizer,
    training: Training,
    ids: Ids,
    vocabulary: int,
    draw: np.random.Generator,
    heard: Callable[[int, float], None] = print,
) -> None:
    """Takes the steps of a training. how, ids, vocabulary, heard: as in `train`. draw: random
    numbers of windows.
    """
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate * rate_at(step, training.steps)
        batch = torch.from_numpy(windows(training, ids, vocabulary, draw)).to(model.device)
        losses = torch.nn.functional.cross_entropy(
            model(input_ids=batch[:, :-1]).logits.flatten(0, 1),
            batch[:, 1:].flatten(),
            reduction="none",
        )
        answers = (batch[:, :-1] >= vocabulary) & (batch[:, :-1] < vocabulary + KINDS)
        weights = 1.0 + (WEIGHT - 1.0) * answers.flatten()
        loss = (weights * losses).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 99 or step + 1 == training.steps:
            heard(step + 1, float(loss.detach()))


def rate_at(step: int, steps: int) -> float:
    """The share of the highest learning rate: rising over a tenth of the steps, then half a cosine
    down to a tenth.
    """
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def windows(training: Training, ids: Ids, vocabulary: int, draw: np.random.Generator) -> Ids:
    """Windows of one step, int64 [tokens / length, length].

    how, ids, vocabulary: as in `train`. draw: random numbers.
    """
    count = training.tokens // training.length
    starts = draw.integers(0, len(ids) - training.length, count)
    batch = np.stack([ids[start : start + training.length] for start in starts])
    for row in batch[: round(training.tiled * count)]:
        size = int(draw.integers(SHORTEST, training.length // 2 + 1))
        row[:] = np.resize(row[:size], training.length)
    for row in batch[len(batch) - round(training.needles * count) :]:
        places = 2 * draw.permutation(training.length // 2)[: (1 + ASKED) * KINDS].reshape(
            KINDS, 1 + ASKED
        )
        for kind, (first, *others) in enumerate(np.sort(places, 1).tolist()):
            hide(row, first, others, kind, vocabulary, draw)
    return batch


def hide(
    row: Ids, first: int, cues: Sequence[int], kind: int, vocabulary: int, draw: np.random.Generator
) -> None:
    """Writes a value of a kind to index `first`, its cue to each index of `cues`, and the value
    again behind those.

    row: int64 [length], changed. kind: from 0 to KINDS - 1. vocabulary: tokens of text. draw:
    random numbers.
    """
    value = vocabulary + KINDS + kind * VALUES + int(draw.integers(VALUES))
    row[first] = value
    for cue in cues:
        row[cue], row[cue + 1] = vocabulary + kind, value
