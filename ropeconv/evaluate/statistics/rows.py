"""What follows from the cells of a row: its price inside the trained context, and the length to which it holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..case import Observation
from ..result import GROWTH, Cell, decided
from .sample import differences


def price(cells: Sequence[Cell], row: str, trained: int) -> tuple[float | None, float | None]:
    """The difference of the loss at the trained length to the first row, and its error; None for what is not known.

    cells: of all rows. row: name. trained: the trained context in tokens.
    """
    for cell in cells:
        if (cell.row, cell.measure, cell.column, cell.depth) == (row, GROWTH, trained, None):
            return cell.difference, cell.difference_error
    return None, None


def holds_to(found: Sequence[Observation], seed: int) -> int | None:
    """The longest length to which the loss of a row stays within three errors of its own best; None without errors.

    found: observations of the row; those of growth have the same targets at all lengths, so lengths are paired by
    window. seed: of the bootstrap. A longer length that is within three errors again, behind one that is not, does not
    count.
    """
    lengths: dict[int, dict[tuple[object, ...], Observation]] = {}
    for one in found:
        if one.measure == GROWTH:
            lengths.setdefault(one.column, {})[one.document, one.window] = one
    if not lengths:
        return None
    whole = set.intersection(*(set(windows) for windows in lengths.values()))
    if len(whole) < 2:
        return None
    mean = {length: float(np.mean([windows[key].value for key in whole])) for length, windows in lengths.items()}
    best = min(mean, key=lambda length: mean[length])
    held = best
    for length in sorted(one for one in lengths if one > best):
        worse = differences(lengths[length], lengths[best], seed)
        if worse is None or worse.error is None or (worse.mean > 0 and decided(worse.mean, worse.error)):
            break
        held = length
    return held
