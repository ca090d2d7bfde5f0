"""What the rows of a runner lose on one sequence, for tests."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ropeconv.evaluate.row import parse_rows
from ropeconv.evaluate.runners import Opening, open_runner

from ...support.models import TRAINED, VOCABULARY

LENGTH = 4 * TRAINED
Losses = dict[str, NDArray[np.float64]]


def ids(length: int = LENGTH, seed: int = 3) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(4, VOCABULARY, (length,), generator=generator).tolist()
    return found


def losses_of(model: object, rows: str = "", length: int = LENGTH, **options: object) -> Losses:
    """The losses of all tokens but the first, by row. model: its path. rows: as on the command line."""
    text = ids(length)
    asked = Opening(str(model), parse_rows(rows) if rows else [], dtype="float32", **options)  # type: ignore[arg-type]
    found = {}
    with open_runner(asked) as (runner, opened):
        for row in opened:
            with runner.engine(row) as engine:
                found[row.name] = engine.token_losses(text, range(1, length)).loss
    return found


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float]:
    """The largest difference between losses inside the trained context, and beyond it."""
    away = np.abs(one - other)
    return float(away[: TRAINED - 1].max()), float(away[TRAINED - 1 :].max())
