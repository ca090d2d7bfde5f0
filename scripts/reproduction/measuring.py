"""What a model predicts: losses and right tokens at every position, and passages that it copies from a distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ropeconv

from .text import Ids
from .training import CUE, PASSAGE, place

BATCH = 8192  # tokens of a forward pass
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predicted:
    """Of each token but the first, float64 [sequences, tokens - 1].

    loss: in nats. right: 1 where the token was the likeliest.
    """

    loss: Numbers
    right: Numbers


def predict(model: Any, ids: Ids, recipe: ropeconv.Recipe | None = None) -> Predicted:
    """Reads sequences under a recipe. model: is as before afterwards. ids: int64 [sequences, tokens]."""
    undo = ropeconv.patch(model, recipe) if recipe else lambda: None
    device, losses, right = model.get_input_embeddings().weight.device, [], []
    try:
        with torch.no_grad():
            for part in torch.from_numpy(ids).split(max(1, BATCH // ids.shape[1])):
                batch = part.to(device)
                logits, wanted = model(input_ids=batch[:, :-1]).logits.float(), batch[:, 1:]
                own = logits.gather(-1, wanted[..., None])[..., 0]
                losses.append((logits.logsumexp(-1) - own).double().cpu())
                right.append((logits.argmax(-1) == wanted).double().cpu())
    finally:
        undo()
    return Predicted(torch.cat(losses).numpy(), torch.cat(right).numpy())


def repeated(ids: Ids, length: int) -> Ids:
    """The first `length` tokens of each sequence again and again; as long as `ids`."""
    return np.tile(ids[:, :length], (1, -(-ids.shape[1] // length)))[:, : ids.shape[1]]


def copies(ids: Ids, distance: int, vocabulary: int, seed: int) -> Ids:
    """Texts that end with a passage of random tokens which they also hold `distance` tokens before.

    ids: int64 [sequences, tokens], texts. vocabulary: number of tokens. seed: of the passages.
    """
    draw, found = np.random.default_rng(seed), ids.copy()
    last = ids.shape[1] - PASSAGE
    for row in found:
        place(row, last - distance, last, PASSAGE, vocabulary, draw)
    return found


def copied(model: Any, ids: Ids) -> Numbers:
    """The share of the last passage of each sequence of `copies` that is predicted behind its cue, [sequences]."""
    return np.asarray(predict(model, ids).right[:, CUE - PASSAGE :].mean(1))
