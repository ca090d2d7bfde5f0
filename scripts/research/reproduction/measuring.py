"""What a model predicts: losses and right tokens at every position, and needles that it finds at a
distance.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ropeconv

from .text import Corpus, Ids
from .training import KINDS, hide

BATCH = 8192  # tokens of a forward pass
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predicted:
    """Of each predicted token, float64 [sequences, tokens].

    loss: in nats. right: 1 where the token was the likeliest.
    """

    loss: Numbers
    right: Numbers


def predict(
    model: Any, ids: Ids, recipe: ropeconv.Recipe | None = None, last: int = 0
) -> Predicted:
    """Reads sequences under a recipe.

    model: is as before afterwards. ids: int64 [sequences, tokens]. recipe: by default none. last:
    how many tokens are predicted at the end of each; 0 for all but the first.
    """
    undo = ropeconv.patch(model, recipe) if recipe else lambda: None
    device = model.get_input_embeddings().weight.device
    losses = []
    right = []
    try:
        with torch.no_grad():
            for part in torch.from_numpy(ids).split(max(1, BATCH // ids.shape[1])):
                batch = part.to(device)
                expected = batch[:, -last:] if last else batch[:, 1:]
                logits = model(input_ids=batch[:, :-1], logits_to_keep=last).logits.float()
                chosen = logits.gather(-1, expected[..., None])[..., 0]
                losses.append((logits.logsumexp(-1) - chosen).double().cpu())
                right.append((logits.argmax(-1) == expected).double().cpu())
    finally:
        undo()
    return Predicted(torch.cat(losses).numpy(), torch.cat(right).numpy())


def repeated(ids: Ids, length: int) -> Ids:
    """The first `length` tokens of each sequence again and again; as long as `ids`."""
    return np.tile(ids[:, :length], (1, -(-ids.shape[1] // length)))[:, : ids.shape[1]]


def with_needles(ids: Ids, distance: int, vocabulary: int, seed: int) -> Ids:
    """Texts that end with a cue and the value that stands `distance` tokens before the cue; each
    kind in turn.

    ids: int64 [sequences, tokens], texts. vocabulary: tokens of text. seed: of the values.
    """
    draw = np.random.default_rng(seed)
    changed = ids.copy()
    cue = ids.shape[1] - 2
    for number, row in enumerate(changed):
        hide(row, cue - distance, [cue], number % KINDS, vocabulary, draw)
    return changed


def retrieved(
    model: Any,
    pieces: Ids,
    distance: int,
    corpus: Corpus,
    recipe: ropeconv.Recipe | None = None,
    repeats: int = 1,
) -> Numbers:
    """The share of needles that a model finds at a distance, in percent, float64 [documents].

    pieces: int64 [sequences, tokens], as many of each document. repeats: needles in each piece.
    """
    shares = [
        predict(
            model, with_needles(pieces, distance, corpus.vocabulary, seed), recipe, last=1
        ).right
        for seed in range(repeats)
    ]
    shares_of_texts: Numbers = 100 * np.mean(shares, 0).reshape(len(corpus.names), -1).mean(1)
    return shares_of_texts
