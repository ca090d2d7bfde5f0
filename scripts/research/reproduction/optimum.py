"""Where a measured curve has its minimum, with an error."""

from dataclasses import dataclass

import numpy as np

from .comparing import Estimate
from .measuring import Numbers

NEIGHBOURS = 2  # points to each side of the lowest one that the parabola goes through


@dataclass(frozen=True)
class Optimum:
    """The minimum of a curve. place: with its errors, in the unit of x. inside: whether it is
    between two points.
    """

    place: Estimate
    inside: bool


def lowest(x: Numbers, y: Numbers) -> tuple[float, bool]:
    """The minimum of a parabola through the lowest point of a curve and its neighbours; whether it
    is inside.

    x: rising, [points]. y: [points]. Where the lowest point is the first or the last one, that is
    returned.
    """
    best = int(y.argmin())
    if best in (0, len(x) - 1):
        return float(x[best]), False
    part = slice(max(0, best - NEIGHBOURS), best + NEIGHBOURS + 1)
    square, linear, _ = np.polyfit(x[part] - x[best], y[part], 2)
    place = float(x[best] - linear / (2 * square)) if square > 0 else float(x[best])
    return float(np.clip(place, x[best - 1], x[best + 1])), True


def optimum(x: Numbers, losses: Numbers, draws: int = 500) -> Optimum:
    """The minimum of mean losses over x. losses: float64 [models, points, documents]. draws: of the
    bootstrap.

    The error between documents is that of a bootstrap, that between models from the minima of each
    model.
    """
    place, inside = lowest(x, losses.mean((0, 2)))
    means = losses.mean(0)
    documents = losses.shape[2]
    draw = np.random.default_rng(0)
    again = [
        lowest(x, means[:, draw.integers(0, documents, documents)].mean(1))[0] for _ in range(draws)
    ]
    each = [lowest(x, curve.mean(1))[0] for curve in losses]
    between_models = float(np.std(each, ddof=1) / np.sqrt(len(each))) if len(each) > 1 else None
    return Optimum(
        Estimate(place, float(np.std(again)), between_models, documents, len(losses)), inside
    )
