"""Lengths from which a class derives a wanted attention factor, for classes without a key for it (Phi 3)."""

from __future__ import annotations

import math

from ...errors import UnsupportedBake

TOLERANCE = 1e-7
REACH = 4096


def original_for(context: int, attention_factor: float) -> tuple[int, int]:
    """Lengths (M, O), M a little above `context`, with `sqrt(1 + ln(M/O) / ln O) = attention_factor`.

    context: in tokens. attention_factor: A. The equation is `ln M / ln O = A^2`; O alone is too coarse, so M grows by
    up to 4096 tokens until the formula gives A within 1e-7, and 1e-6 is accepted. Raises UnsupportedBake for A < 1, and
    where no such pair exists.
    """
    if abs(attention_factor - 1) < TOLERANCE:
        return context, context
    if attention_factor > 1:
        best = min(_pairs(context, attention_factor), key=lambda pair: pair[0])
        if best[0] < 1e-6:
            return best[1], best[2]
    raise UnsupportedBake(
        f"attention_factor {attention_factor:g}",
        "a class that derives it from two lengths",
        "no pair of lengths gives it",
        "choose --attention-factor 1",
    )


def lengths_note(wanted: int, context: int, original: int) -> str:
    """The note about a declared context and original length that were chosen for an attention factor. All in tokens."""
    return (
        f"declares {context} tokens (for {wanted}) and an original length of {original}, from which this architecture "
        "derives its attention factor; servers that take that length for their default window need the window as an "
        "option"
    )


def _pairs(context: int, attention_factor: float) -> list[tuple[float, int, int]]:
    found = []
    for longer in range(context, context + REACH):
        original = round(longer ** (1 / attention_factor**2))
        if original < 2:
            continue
        error = abs(math.sqrt(math.log(longer) / math.log(original)) - attention_factor)
        found.append((error, longer, original))
        if error < TOLERANCE:
            break
    return found or [(math.inf, context, context)]
