"""The loss before any fine-tuning over thetas, at several lengths, and the theta of the scaling
law.
"""

import math
from typing import Any

import numpy as np

from ropeconv.rope.forms import ntk_theta, theta_for_length

from .comparing import compare, estimate
from .measuring import Numbers, predict
from .optimum import optimum
from .published import LAW
from .report import Curve, Report, Table, curves, nats
from .text import Corpus
from .training import Training, recipe

FACTORS = (2, 4, 8)
POWERS = np.arange(-1.0, 6.01, 0.5)  # thetas are the trained one times 4 to these powers
DOCUMENTS = 16


def thetas(training: Training) -> dict[str, float]:
    """All thetas that are measured, by name: a grid, and the law and NTK for each length."""
    bases = {f"{power:g}": training.base * 4.0**power for power in POWERS}
    for factor in FACTORS:
        bases[f"law {factor}"] = theta_for_length(
            training.base, training.length, factor * training.length
        )
        bases[f"ntk {factor}"] = ntk_theta(training.base, factor, training.head_dim)
    return bases


def trainings(training: Training) -> list[Training]:
    """The models of one seed."""
    return [training]


def measure(model: Any, training: Training, corpus: Corpus) -> dict[str, Numbers]:
    """Return mean losses in nats by theta: float64 [lengths, documents].

    The lengths are FACTORS times the trained one. The first tokens of one pass are a shorter pass.

    Args:
        model: A model that was trained so.
        training: The training.
        corpus: The documents, of which the first ones are measured on.
    """
    ids = corpus.test[:DOCUMENTS, : FACTORS[-1] * training.length + 1]
    losses = {}
    for name, theta in thetas(training).items():
        loss = predict(model, ids, recipe(training, "theta", theta)).loss
        losses[name] = np.stack([loss[:, : factor * training.length].mean(1) for factor in FACTORS])
    return losses


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Return the table, comparisons and picture of the best theta by length.

    Args:
        measured: By theta, float64 [models, lengths, documents].
        training: The training of a plain model.
    """
    grid = [f"{power:g}" for power in POWERS]
    log_thetas = np.log10(training.base * 4.0**POWERS)
    trained = "0"  # the power of the trained theta
    lines = []
    comparisons = []
    by_length = []
    marks = []
    numbers = {}
    for index, factor in enumerate(FACTORS):
        length = factor * training.length
        losses = np.stack([measured[name][:, index] for name in grid], 1)
        lowest = grid[int(losses.mean((0, 2)).argmin())]
        best = optimum(log_thetas, losses)
        law = math.log10(thetas(training)[f"law {factor}"])
        ntk = math.log10(thetas(training)[f"ntk {factor}"])

        edge = "" if best.inside else " (the end of the grid)"
        line = [
            f"{length:,}",
            f"10^({best.place.value:.2f} ± {best.place.error or 0:.2f}){edge}",
            f"10^{law:.2f}",
            f"10^{ntk:.2f}",
        ]
        for name in (trained, lowest, f"law {factor}", f"ntk {factor}"):
            line.append(nats(estimate(measured[name][:, index])))
        lines.append(line)

        by_law = measured[f"law {factor}"][:, index]
        by_ntk = measured[f"ntk {factor}"][:, index]
        of_trained = measured[trained][:, index]
        of_lowest = measured[lowest][:, index]
        at = f"at {length:,} tokens"
        comparisons += [
            compare(f"law minus trained theta, {at}", by_law, of_trained, claimed=-1),
            compare(f"law minus NTK, {at}", by_law, by_ntk),
            compare(f"law minus lowest of the grid, {at}", by_law, of_lowest),
        ]

        means = [estimate(losses[:, point]) for point in range(len(grid))]
        values = [mean.value for mean in means]
        errors = [mean.between_models or 0.0 for mean in means]
        by_length.append(Curve(f"{length:,} tokens", list(10**log_thetas), values, errors))
        marks.append((10**law, ""))
        loss_by_theta = {}
        for theta, value in zip(10**log_thetas, values, strict=True):
            loss_by_theta[f"{theta:.6g}"] = value
        numbers[str(length)] = {
            "optimum_log10": best.place.value,
            "error": best.place.error,
            "inside": best.inside,
            "law_log10": law,
            "ntk_log10": ntk,
            "loss_by_theta": loss_by_theta,
        }

    head = [
        "tokens",
        "best theta",
        "law",
        "NTK",
        f"loss: {training.base:,.0f}",
        "lowest of the grid",
        "law",
        "NTK",
    ]
    note = (
        "Losses in nats per token. The published losses of the first training step are not at hand;"
        " the law is."
    )
    title = "Loss by theta (lines: the law)"
    return Report(
        "thetas",
        "Theta and the loss before fine-tuning",
        LAW,
        [Table("The best theta by length", head, lines, note)],
        comparisons,
        [curves(by_length, "theta", "loss, nats", title, marks, log=True)],
        {"lengths": numbers},
        "nats",
    )
