"""Partial rotation: with half of each head unrotated, a small base keeps retrieval (Su 2024)."""

from dataclasses import replace

from .bound import DISTANCES, LENGTH, TIMES_BOUND, measure, name_of
from .bound import trainings as of_bases
from .comparing import compare, estimate
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
    """Tables, comparisons and the picture. measured: by model and measure, float64 [models,
    documents].
    """
    models = trainings(training)
    measures = ["loss", "loss beyond", *(f"retrieved {distance}" for distance in DISTANCES)]
    lines = [
        [
            "half" if model.rotated < 1 else "all",
            f"{model.base:,.1f}",
            *(nats(estimate(measured[f"{name_of(model)}, {name}"])) for name in measures[:2]),
            *(percent(estimate(measured[f"{name_of(model)}, {name}"])) for name in measures[2:]),
        ]
        for model in models
    ]
    head = [
        "rotated",
        "base",
        f"loss, {LENGTH}",
        "loss beyond",
        *(f"found at {distance}" for distance in DISTANCES),
    ]
    whole, half, half_large = (name_of(model) for model in models)
    claims: dict[str, tuple[int | None, int | None]] = {
        "loss": (None, 0),
        "loss beyond": (None, 0),
        **{f"retrieved {distance}": (1, 0) for distance in DISTANCES[-2:]},
    }
    comparisons = [
        compare(
            f"{name.replace('retrieved', 'found at')}: {title}",
            measured[f"{first}, {name}"],
            measured[f"{second}, {name}"],
            claimed=claim,
        )
        for name, (against_whole, against_large) in claims.items()
        for title, first, second, claim in (
            ("half minus all rotated, small base", half, whole, against_whole),
            ("half rotated, small minus large base", half, half_large, against_large),
        )
    ]
    by_model = [
        Curve.of(
            f"{line[0]} rotated, base {line[1]}",
            DISTANCES,
            [
                estimate(measured[f"{name_of(model)}, retrieved {distance}"])
                for distance in DISTANCES
            ],
        )
        for line, model in zip(lines, models, strict=True)
    ]
    return Report(
        "rotation",
        "Partial rotation and the base",
        SU_BASE,
        [
            Table(
                f"Models of two layers, trained with {LENGTH} tokens",
                head,
                lines,
                "Losses in nats per token.",
            )
        ],
        comparisons,
        [curves(by_model, "distance, tokens", "found, %", "Retrieval by distance")],
        unit="nats, or percentage points",
    )
