"""Partial rotation: with half of each head unrotated, a small base keeps retrieval (Su 2024)."""

from dataclasses import replace

from .bound import DISTANCES, LENGTH, TIMES_BOUND, measure, name_of
from .bound import trainings as of_bases
from .comparing import Comparison, compare, estimate
from .measuring import Numbers
from .published import SU_BASE
from .report import Curve, Report, Table, curves, nats, percent
from .training import Training

__all__ = ["measure", "report", "trainings"]

SMALL = TIMES_BOUND.index(1 / 20)
LARGE = TIMES_BOUND.index(10.0)


def trainings(training: Training) -> list[Training]:
    """The models of one seed: a small base with whole heads and with half heads, and a large one
    with half heads.
    """
    bases = of_bases(training)
    small, large = (
        replace(bases[index], layers=2, steps=max(1, 3 * training.steps // 8))
        for index in (SMALL, LARGE)
    )
    return [small, replace(small, rotated=0.5), replace(large, rotated=0.5)]


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Return the table, comparisons and picture of models that rotate half or all of a head.

    Args:
        measured: By model and measure, float64 [models, documents].
        training: The training of a plain model.
    """
    models = trainings(training)
    head = [
        "rotated",
        "base",
        f"loss, {LENGTH}",
        "loss beyond",
        *(f"found at {distance}" for distance in DISTANCES),
    ]
    lines = []
    by_model = []
    for model in models:
        rotated = "half" if model.rotated < 1 else "all"
        base = f"{model.base:,.1f}"
        found = []
        for distance in DISTANCES:
            found.append(estimate(measured[f"{name_of(model)}, retrieved {distance}"]))
        line = [rotated, base]
        for name in ("loss", "loss beyond"):
            line.append(nats(estimate(measured[f"{name_of(model)}, {name}"])))
        lines.append([*line, *map(percent, found)])
        by_model.append(Curve.of(f"{rotated} rotated, base {base}", DISTANCES, found))
    table = Table(
        f"Models of two layers, trained with {LENGTH} tokens",
        head,
        lines,
        "Losses in nats per token.",
    )
    return Report(
        "rotation",
        "Partial rotation and the base",
        SU_BASE,
        [table],
        _comparisons(measured, models),
        [curves(by_model, "distance, tokens", "found, %", "Retrieval by distance")],
        unit="nats, or percentage points",
    )


def _comparisons(measured: dict[str, Numbers], models: list[Training]) -> list[Comparison]:
    """Return half a head compared with a whole one, and the small base with the large one.

    Args:
        measured: By model and measure, float64 [models, documents].
        models: The trainings: all of a head with the small base, half with it, half with the large.
    """
    whole, half, half_large = (name_of(model) for model in models)
    # the claimed signs of both differences; None without a claim
    claims: dict[str, tuple[int | None, int | None]] = {
        "loss": (None, 0),
        "loss beyond": (None, 0),
    }
    for distance in DISTANCES[-2:]:
        claims[f"retrieved {distance}"] = (1, 0)

    compared = []
    for name, (against_whole, against_large) in claims.items():
        title = name.replace("retrieved", "found at")
        of_half = measured[f"{half}, {name}"]
        compared.append(
            compare(
                f"{title}: half minus all rotated, small base",
                of_half,
                measured[f"{whole}, {name}"],
                claimed=against_whole,
            )
        )
        compared.append(
            compare(
                f"{title}: half rotated, small minus large base",
                of_half,
                measured[f"{half_large}, {name}"],
                claimed=against_large,
            )
        )
    return compared
