"""Sentences that belong to a table: what its errors are between, and how many of its cells stand out by chance."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import counted
from .cells import Summarised
from .chance import beyond
from .sample import FEWEST


def notes(found: Sequence[Summarised]) -> list[str]:
    """The sentences for the cells of all rows. found: cells with their degrees of freedom."""
    whole = [one for one in found if one.cell.depth is None]
    return [*_texts(whole), *_single(whole), *_multiplicity(whole)]


def _texts(found: Sequence[Summarised]) -> list[str]:
    """What the errors are between, where that is not documents."""
    counts: dict[int, dict[str, None]] = {}
    for one in found:
        if one.cell.documents < FEWEST and one.cell.windows > one.cell.documents:
            counts.setdefault(one.cell.documents, {})[one.cell.measure] = None
    said = []
    for count, measures in sorted(counts.items()):
        texts = "one text" if count == 1 else f"{count} texts"
        said.append(
            f"{', '.join(measures)}: {texts}, so errors are between places of {'the text' if count == 1 else 'them'}, "
            f"not between texts; give {FEWEST} or more to measure those."
        )
    return said


def _single(found: Sequence[Summarised]) -> list[str]:
    alone = dict.fromkeys(one.cell.measure for one in found if one.cell.error is None)
    return (
        [f"{', '.join(alone)}: one window, so no error is known; give more --windows or longer texts."] if alone else []
    )


def _multiplicity(found: Sequence[Summarised]) -> list[str]:
    chances = [beyond(one.freedom) for one in found if one.cell.difference_error is not None]
    if not chances:
        return []
    expected = sum(chances)
    about = f"about {expected:.1f}" if expected >= 0.05 else "fewer than 0.1"
    judged = counted(len(chances), "difference to the first row is", "differences to the first row are")
    return [f"{judged} judged at three standard errors; {about} would pass them by chance if no row differed."]
