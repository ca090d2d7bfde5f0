"""Outputs of rows, and what the rows of a runner lose on one sequence."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ropeconv.features.evaluation.runners.opening import open_runner
from ropeconv.features.evaluation.runners.runner import RunnerRequest
from ropeconv.verbs.rows import parse_rows

from ....support.baking import apply, make_plan
from ....support.models import TRAINED, VOCABULARY

LENGTH = 4 * TRAINED
Losses = dict[str, NDArray[np.float64]]


def baked(source: Path, row: str, out: Path, **options: Any) -> Path:
    recipe = parse_rows(row)[0].recipe
    assert recipe is not None
    return apply(make_plan(source, recipe, out, **options))


def ids() -> list[int]:
    generator = torch.Generator().manual_seed(3)
    tokens: list[int] = torch.randint(4, VOCABULARY, (LENGTH,), generator=generator).tolist()
    return tokens


def losses_of(model: object, rows: str = "", **options: Any) -> Losses:
    """The losses of all tokens but the first, by row. model: its path. rows: as on the command
    line.
    """
    request = RunnerRequest(
        str(model), parse_rows(rows) if rows else [], dtype="float32", **options
    )
    losses = {}
    with open_runner(request) as (runner, opened):
        for row in opened:
            with runner.engine(row) as engine:
                losses[row.name] = engine.token_losses(ids(), range(1, LENGTH)).loss
    return losses


def distance(losses: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float]:
    """The largest difference between losses inside the trained context, and beyond it."""
    away = np.abs(losses - other)
    return float(away[: TRAINED - 1].max()), float(away[TRAINED - 1 :].max())
