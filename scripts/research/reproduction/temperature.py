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
    """Tables, comparisons and the picture. measured: by s, float64 [models, attention factors,
    documents].
    """
    lines = []
    comparisons = []
    drawn = []
    marks = []
    slopes = []
    numbers = {}
    one_is = int(np.abs(SWEPT - 1.0).argmin())
    for factor in FACTORS:
        losses = measured[str(factor)]
        best = optimum(SWEPT, losses[:, :-1])
        formula = temperature_attention_factor(factor)
        lowest = int(losses[:, :-1].mean((0, 2)).argmin())
        error = best.place.error or 0.0
        slopes.append((math.log(factor), best.place.value, error))
        lines.append(
            [
                str(factor),
                f"{best.place.value:.3f} ± {error:.3f}"
                + ("" if best.inside else " (the end of the sweep)"),
                f"{formula:.3f}",
                *(nats(estimate(losses[:, index])) for index in (one_is, lowest, -1)),
                _apart(best.place, formula),
            ]
        )
        comparisons += [
            compare(
                f"0.1 ln s + 1 minus 1, s = {factor}", losses[:, -1], losses[:, one_is], claimed=-1
            ),
            compare(
                f"0.1 ln s + 1 minus lowest of the sweep, s = {factor}",
                losses[:, -1],
                losses[:, lowest],
                claimed=0,
            ),
        ]
        means = [estimate(losses[:, index] - losses[:, one_is]) for index in range(len(SWEPT))]
        drawn.append(Curve.of(f"s = {factor}", list(SWEPT), means))
        marks.append((formula, ""))
        numbers[str(factor)] = {
            "optimum": best.place.value,
            "error": best.place.error,
            "inside": best.inside,
            "formula": formula,
            "loss_minus_loss_at_1": {
                f"{x:.2f}": m.value for x, m in zip(SWEPT, means, strict=True)
            },
        }
    slope = fitted(slopes)
    fits = ", ".join(f"{value:g} for {name}" for name, value in SLOPES.items())
    note = (
        f"Losses in nats per token. Fitted to the three optima: a = {slope.value:.3f} ±"
        f" {slope.error or 0:.3f} in a ln s + 1. Published: {fits}."
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
        [curves(drawn, "attention factor", "loss minus that at 1, nats", TITLE, marks)],
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
    """The slope a of a ln s + 1 through optima, by weighted least squares. points: (ln s, optimum,
    its error).

    The same models and documents are in all of them, so that its error, as if they were
    independent, is too small.
    """
    x, y, error = (np.array(column) for column in zip(*points, strict=True))
    weight = 1 / np.maximum(error, 1e-3) ** 2
    square = float((weight * x * x).sum())
    return Estimate(float((weight * x * (y - 1)).sum() / square), square**-0.5, None, 0, 0)
