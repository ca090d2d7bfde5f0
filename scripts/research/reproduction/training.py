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
"""The name of a method's value, where that is not a factor."""


@dataclass(frozen=True)
class Training:
    """How a model is trained."""

    seed: int = 0
    """The seed of weights and data."""

    base: float = 10_000.0
    """rope_theta."""

    length: int = 128
    """The tokens of a window."""

    tokens: int = 1024
    """The tokens of a step."""

    steps: int = 800
    """Steps of AdamW."""

    rate: float = 3e-3
    """The highest learning rate, after a tenth of the steps. It falls along a cosine to a tenth."""

    tiled: float = 0.25
    """The share of windows that have the beginning of a text again and again."""

    needles: float = 0.0
    """The share of windows with a needle of each kind."""

    log_n: bool = False
    """Whether queries are multiplied by ln(p + 1) / ln(length) in training."""

    rotated: float = 1.0
    """The share of each head that rotates."""

    hidden: int = 128
    """The hidden size; a head has hidden / heads dimensions."""

    layers: int = 3
    heads: int = 4

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def build(training: Training, vocabulary: int) -> Any:
    """Return an untrained model.

    Args:
        training: Its shape and seed.
        vocabulary: The tokens of text; those of needles are added.
    """
    torch.manual_seed(training.seed)
    rope = {"rope_type": "default", "rope_theta": training.base}
    return LlamaForCausalLM(LlamaConfig(**sizes(training, vocabulary), rope_parameters=rope))


def sizes(training: Training, vocabulary: int) -> dict[str, Any]:
    """Return the settings of a config that every family has.

    Args:
        training: The shape of the model.
        vocabulary: The tokens of text; those of needles are added.
    """
    return {
        "vocab_size": vocabulary + RESERVED,
        "hidden_size": training.hidden,
        "intermediate_size": 3 * training.hidden,
        "initializer_range": training.hidden**-0.5,
        "num_hidden_layers": training.layers,
        "num_attention_heads": training.heads,
        "num_key_value_heads": training.heads,
        "head_dim": training.head_dim,
        "max_position_embeddings": training.length,
        "tie_word_embeddings": True,
        "use_cache": False,
    }


def recipe(
    training: Training, method: str = "theta", value: float | None = None, **modifiers: Any
) -> ropeconv.Recipe:
    """Return a recipe for a trained model; log-n is over the length that it was trained with.

    Args:
        training: The training of the model.
        method: The name of the method, by default the theta of the training.
        value: The value of the method, such as its factor; None for that of the training.
        **modifiers: Modifiers of the recipe, and settings of the method.
    """
    parameter = PARAMETER.get(method, "factor")  # the name of the method's own value
    parameters: dict[str, Any] = {parameter: training.base if value is None else value}
    of_recipe: dict[str, Any] = {}
    names = set(ropeconv.Recipe.__dataclass_fields__)
    for name, setting in modifiers.items():
        if name in names:
            of_recipe[name] = setting
        else:
            parameters[name] = setting
    data = {"method": method, "parameters": parameters, **of_recipe}
    return ropeconv.Recipe.from_dict(data)


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
    """Train a model, and return it without the recipe of `trained_with`.

    Its measures must add that recipe again.

    Args:
        training: Everything that decides the result.
        ids: The tokens to draw windows from.
        vocabulary: The number of tokens.
        device: A device of torch.
        heard: Called with the step and its loss in nats per token.
        make: Returns the untrained model, from the training and the vocabulary.
    """
    model = make(training, vocabulary).to(device).train()
    method = trained_with(training)
    undo = ropeconv.patch(model, method) if method else lambda: None

    # weight decay is for matrices only
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, training.rate, (0.9, 0.98))
    draw = np.random.default_rng((training.seed, 1))
    optimise(model, optimizer, training, ids, vocabulary, draw, heard)
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
    """Take the steps of a training.

    Args:
        model: The model, which is changed.
        optimizer: Changes it.
        training: As in `train`, and so `ids`, `vocabulary` and `heard`.
        ids: The tokens to draw windows from.
        vocabulary: The number of tokens.
        draw: Random numbers for the windows.
        heard: Called with the step and its loss.
    """
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate * rate_at(step, training.steps)
        batch = torch.from_numpy(windows(training, ids, vocabulary, draw)).to(model.device)
        inputs = batch[:, :-1]
        expected = batch[:, 1:]
        logits = model(input_ids=inputs).logits
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), expected.flatten(), reduction="none"
        )
        # what follows a cue is the answer, which weighs more than text
        is_cue = (inputs >= vocabulary) & (inputs < vocabulary + KINDS)
        weights = 1.0 + (WEIGHT - 1.0) * is_cue.flatten()
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
    """Return the windows of one step, int64 [tokens / length, length].

    The first ones repeat a short text (`tiled`), and the last ones hide needles.

    Args:
        training: Their length, and the shares of these two kinds.
        ids: The tokens to draw from.
        vocabulary: The number of tokens of text; those behind it are of needles.
        draw: Random numbers.
    """
    count = training.tokens // training.length
    starts = draw.integers(0, len(ids) - training.length, count)
    batch = np.stack([ids[start : start + training.length] for start in starts])
    for row in batch[: round(training.tiled * count)]:
        size = int(draw.integers(SHORTEST, training.length // 2 + 1))
        row[:] = np.resize(row[:size], training.length)

    # each kind of needle has even places in a window: one that hides the value, and others whose
    # cues ask for it
    with_needles = round(training.needles * count)
    for row in batch[len(batch) - with_needles :]:
        drawn = draw.permutation(training.length // 2)[: (1 + ASKED) * KINDS]
        places = np.sort(2 * drawn.reshape(KINDS, 1 + ASKED), 1)
        for kind, (first, *others) in enumerate(places.tolist()):
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
