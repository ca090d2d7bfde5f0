"""Rows of schedules on held-out windows, with paired errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ..evaluate.case import Observation
from ..evaluate.statistics.sample import differences
from .candidate import Candidate
from .result import Measured, TunedRow
from .scorer import Losses, Scorer
from .windows import Window

BLOCKS = 16
"""Points of a curve by position."""
Part = Callable[[Losses], float]


def rows(scorer: Scorer, candidates: Sequence[Candidate], reference: str, seed: int) -> list[TunedRow]:
    """Rows of candidates.

    scorer: of held-out windows. candidates: with different names. reference: name of the one that others are compared
    with. seed: of the bootstrap between documents.
    """
    losses = {one.name: scorer.losses(one.schedule) for one in candidates}
    price = scorer.price
    parts: dict[str, Part] = {
        "beyond": lambda one: one.beyond_loss,
        "inside": lambda one: one.inside_loss,
        "total": lambda one: one.value(price),
    }
    if scorer.windows[0].needle is not None:
        parts["needle"] = lambda one: one.needle
    edges = blocks(scorer.windows[0])
    return [
        TunedRow(
            name=row.name,
            recipe=row.recipe.to_dict() if row.recipe else None,
            curve=[float(np.mean([one.tokens[a:b].mean() for one in losses[row.name]])) for a, b in edges],
            **{
                part: measured(scorer.windows, losses[row.name], losses[reference], of, seed, row.name == reference)
                for part, of in parts.items()
            },
        )
        for row in candidates
    ]


def blocks(window: Window) -> list[tuple[int, int]]:
    """First and last + 1 of the targets of each point of a curve, on one side of the trained context each."""
    count, split = len(window.text.targets), window.beyond
    edges = [
        *np.linspace(0, split, BLOCKS // 2 + 1).astype(int),
        *np.linspace(split, count, BLOCKS // 2 + 1).astype(int),
    ]
    return [(int(a), int(b)) for a, b in pairwise(edges) if b > a]


def measured(
    windows: Sequence[Window], own: Sequence[Losses], reference: Sequence[Losses], part: Part, seed: int, itself: bool
) -> Measured:
    """A part of the losses of a row, and its paired difference to the reference.

    windows: that were read. own, reference: losses of both. part: of them. seed: of the bootstrap. itself: whether the
    row is the reference.
    """
    ours, theirs = (_observations(windows, losses, part) for losses in (own, reference))
    mean = float(np.mean([one.value for one in ours]))
    if itself:
        return Measured(value=mean)
    found = differences({one.pair: one for one in ours}, {one.pair: one for one in theirs}, seed)
    assert found is not None
    return Measured(value=mean, difference=found.mean, error=found.error)


def _observations(windows: Sequence[Window], losses: Sequence[Losses], part: Part) -> list[Observation]:
    return [
        Observation("tune", "loss", window.text.column, window.text.document, window.text.window, part(one))
        for window, one in zip(windows, losses, strict=True)
    ]
