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
    """Read sequences under a recipe, and return the losses of tokens and which were likeliest.

    Args:
        model: The model, which is as before afterwards.
        ids: int64 [sequences, tokens].
        recipe: The recipe; None for none.
        last: How many tokens at the end of each sequence are predicted; 0 for all but the first.
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
                # the loss of a token is -log softmax: logsumexp of all logits minus its own
                own_logits = logits.gather(-1, expected[..., None])[..., 0]
                losses.append((logits.logsumexp(-1) - own_logits).double().cpu())
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
    """Return the share of needles that a model finds at a distance, in percent, [documents].

    Args:
        model: The model.
        pieces: int64 [sequences, tokens], as many of each document.
        distance: The tokens between a needle and its cue at the end.
        corpus: The documents.
        recipe: The recipe under which the model runs; None for none.
        repeats: The needles in each piece, one after another.
    """
    shares = []
    for seed in range(repeats):
        asked = with_needles(pieces, distance, corpus.vocabulary, seed)
        shares.append(predict(model, asked, recipe, last=1).right)
    by_document = np.mean(shares, 0).reshape(len(corpus.names), -1)
    percent: Numbers = 100 * by_document.mean(1)
    return percent
