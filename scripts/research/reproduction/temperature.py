"""The attention factor of YaRN: the loss over its value, and where it is lowest, beside 0.1 ln s +
1.
"""

import math
from typing import Any

import numpy as np

from ropeconv.bake.proof import critical
from ropeconv.rope.forms import temperature_attention_factor

from .comparing import Estimate, compare, estimate
from .measuring import Numbers, predict
from .optimum import optimum
from .published import PENG, SLOPES
from .report import Curve, Report, Table, curves, nats
from .text import Corpus
from .training import Training, recipe

FACTORS = (2, 4, 8)
SWEPT = np.arange(0.80, 1.4501, 0.05)
DOCUMENTS = 16
TITLE = "Loss by attention factor (lines: 0.1 ln s + 1)"


def trainings(training: Training) -> list[Training]:
    """The models of one seed."""
    return [training]


def measure(model: Any, training: Training, corpus: Corpus) -> dict[str, Numbers]:
    """Return mean losses of YaRN in nats, by its factor s: float64 [attention factors, documents].

    The attention factors are those of SWEPT, and at last the one of YaRN's formula. The losses are
    those within s times the trained length.

    Args:
        model: A model that was trained so.
        training: The training.
        corpus: The documents, of which the first ones are measured on.
    """
    numbers = {}
    for factor in FACTORS:
        ids = corpus.test[:DOCUMENTS, : factor * training.length + 1]
        losses = []
        for value in (*SWEPT, temperature_attention_factor(factor)):
            yarn = recipe(training, "yarn", float(factor), attention_factor=float(value))
            losses.append(predict(model, ids, yarn).loss.mean(1))
        numbers[str(factor)] = np.stack(losses)
    return numbers


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Return the table, comparisons and picture of the best attention factor of YaRN.

    Args:
        measured: By s, float64 [models, attention factors, documents]; the last attention factor is
            that of the formula, 0.1 ln s + 1.
        training: The training of a plain model.
    """
    lines = []
    comparisons = []
    by_factor = []
    marks = []
    points = []
    numbers = {}
    at_1 = int(np.abs(SWEPT - 1.0).argmin())
    for factor in FACTORS:
        losses = measured[str(factor)]
        swept = losses[:, :-1]
        lowest = int(swept.mean((0, 2)).argmin())
        best = optimum(SWEPT, swept)
        formula = temperature_attention_factor(factor)
        error = best.place.error or 0.0
        points.append((math.log(factor), best.place.value, error))

        edge = "" if best.inside else " (the end of the sweep)"
        lines.append(
            [
                str(factor),
                f"{best.place.value:.3f} ± {error:.3f}{edge}",
                f"{formula:.3f}",
                nats(estimate(losses[:, at_1])),
                nats(estimate(losses[:, lowest])),
                nats(estimate(losses[:, -1])),
                _apart(best.place, formula),
            ]
        )
        by_formula = losses[:, -1]
        comparisons += [
            compare(f"0.1 ln s + 1 minus 1, s = {factor}", by_formula, losses[:, at_1], claimed=-1),
            compare(
                f"0.1 ln s + 1 minus lowest of the sweep, s = {factor}",
                by_formula,
                losses[:, lowest],
                claimed=0,
            ),
        ]

        means = [estimate(losses[:, index] - losses[:, at_1]) for index in range(len(SWEPT))]
        by_factor.append(Curve.of(f"s = {factor}", list(SWEPT), means))
        marks.append((formula, ""))
        minus_loss_at_1 = {}
        for attention_factor, mean in zip(SWEPT, means, strict=True):
            minus_loss_at_1[f"{attention_factor:.2f}"] = mean.value
        numbers[str(factor)] = {
            "optimum": best.place.value,
            "error": best.place.error,
            "inside": best.inside,
            "formula": formula,
            "loss_minus_loss_at_1": minus_loss_at_1,
        }

    slope = fitted(points)
    published = ", ".join(f"{value:g} for {name}" for name, value in SLOPES.items())
    note = (
        f"Losses in nats per token. Fitted to the three optima: a = {slope.value:.3f} ±"
        f" {slope.error or 0:.3f} in a ln s + 1. Published: {published}."
    )
    head = [
        "s",
        "best attention factor",
        "0.1 ln s + 1",
        "loss at 1",
        "lowest",
        "loss at 0.1 ln s + 1",
        "distance",
    ]
    return Report(
        "temperature",
        "The attention factor of YaRN",
        PENG,
        [Table("The best attention factor by s", head, lines, note)],
        comparisons,
        [curves(by_factor, "attention factor", "loss minus that at 1, nats", TITLE, marks)],
        {"slope": slope.value, "slope_error": slope.error, "factors": numbers},
        "nats",
    )


def _apart(best: Estimate, formula: float) -> str:
    """How far a formula is from an optimum, in standard errors."""
    if not best.error:
        return "no error"
    errors = abs(best.value - formula) / best.error
    decided = best.freedom > 0 and errors > critical(best.freedom)
    return f"{errors:.1f} errors: {'decided' if decided else 'not decided'}"


def fitted(points: list[tuple[float, float, float]]) -> Estimate:
    """Return the slope a of a ln s + 1 through optima, by weighted least squares.

    The same models and documents are in all of them, so that its error, as if they were
    independent, is too small.

    Args:
        points: (ln s, optimum, its error).
    """
    x, y, error = (np.array(column) for column in zip(*points, strict=True))
    weight = 1 / np.maximum(error, 1e-3) ** 2
    square = float((weight * x * x).sum())
    slope = float((weight * x * (y - 1)).sum() / square)
    return Estimate(slope, square**-0.5, None, 0, 0)
