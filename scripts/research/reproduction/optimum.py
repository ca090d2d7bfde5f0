"""Where a measured curve has its minimum, with an error."""

from dataclasses import dataclass

import numpy as np

from .comparing import Estimate
from .measuring import Numbers

NEIGHBOURS = 2  # points to each side of the lowest one that the parabola goes through


@dataclass(frozen=True)
class Optimum:
    """The minimum of a curve."""

    place: Estimate
    """Its x, with errors."""

    inside: bool
    """Whether it is between two points of the curve, and not at an end."""


def lowest(x: Numbers, y: Numbers) -> tuple[float, bool]:
    """Return the minimum of a curve, by a parabola through its lowest point and the neighbours.

    Args:
        x: Rising, [points].
        y: [points].

    Returns:
        The x of the minimum, and whether it is inside of the curve. Where the lowest point is the
        first or the last one, it is returned, and False.
    """
    best = int(y.argmin())
    if best in (0, len(x) - 1):
        return float(x[best]), False
    part = slice(max(0, best - NEIGHBOURS), best + NEIGHBOURS + 1)
    square, linear, _ = np.polyfit(x[part] - x[best], y[part], 2)
    place = float(x[best])
    if square > 0:  # else the parabola has no minimum
        place = float(x[best] - linear / (2 * square))
    return float(np.clip(place, x[best - 1], x[best + 1])), True


def optimum(x: Numbers, losses: Numbers, draws: int = 500) -> Optimum:
    """Return the minimum of mean losses over x, with its errors.

    The error between documents is that of a bootstrap, that between models from the minima of each
    model.

    Args:
        x: Rising, [points].
        losses: float64 [models, points, documents].
        draws: Samples of documents in the bootstrap.
    """
    models, _, documents = losses.shape
    place, inside = lowest(x, losses.mean((0, 2)))

    by_document = losses.mean(0)
    draw = np.random.default_rng(0)
    drawn_places = []
    for _ in range(draws):
        sample = draw.integers(0, documents, documents)
        drawn_place, _ = lowest(x, by_document[:, sample].mean(1))
        drawn_places.append(drawn_place)
    between_documents = float(np.std(drawn_places))

    between_models = None
    if models > 1:
        places = [lowest(x, curve.mean(1))[0] for curve in losses]
        between_models = float(np.std(places, ddof=1) / np.sqrt(models))
    return Optimum(Estimate(place, between_documents, between_models, documents, models), inside)
