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
    """By theta, the mean loss of the first 2, 4 and 8 times the trained length in nats, float64
    [lengths, documents].

    model: trained as `how` says. corpus: its first documents are measured on. The first tokens of
    one pass are a shorter pass.
    """
    ids = corpus.test[:DOCUMENTS, : FACTORS[-1] * training.length + 1]
    losses = {}
    for name, theta in thetas(training).items():
        loss = predict(model, ids, recipe(training, "theta", theta)).loss
        losses[name] = np.stack([loss[:, : factor * training.length].mean(1) for factor in FACTORS])
    return losses


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Tables, comparisons and the picture. measured: by theta, float64 [models, lengths,
    documents].
    """
    grid = [f"{power:g}" for power in POWERS]
    places = np.log10(training.base * 4.0**POWERS)
    lines = []
    comparisons = []
    drawn = []
    marks = []
    numbers = {}
    for index, factor in enumerate(FACTORS):
        losses = np.stack([measured[name][:, index] for name in grid], 1)
        best = optimum(places, losses)
        law, ntk = (math.log10(thetas(training)[f"{name} {factor}"]) for name in ("law", "ntk"))
        lowest = grid[int(losses.mean((0, 2)).argmin())]
        edge = "" if best.inside else " (the end of the grid)"
        lines.append(
            [
                f"{factor * training.length:,}",
                f"10^({best.place.value:.2f} ± {best.place.error or 0:.2f}){edge}",
                f"10^{law:.2f}",
                f"10^{ntk:.2f}",
                *(
                    nats(estimate(measured[name][:, index]))
                    for name in ("0", lowest, f"law {factor}", f"ntk {factor}")
                ),
            ]
        )
        rows = {name: measured[f"{name} {factor}"][:, index] for name in ("law", "ntk")}
        at = f"at {factor * training.length:,} tokens"
        comparisons += [
            compare(
                f"law minus trained theta, {at}", rows["law"], measured["0"][:, index], claimed=-1
            ),
            compare(f"law minus NTK, {at}", rows["law"], rows["ntk"]),
            compare(f"law minus lowest of the grid, {at}", rows["law"], measured[lowest][:, index]),
        ]
        means = [estimate(losses[:, point]) for point in range(len(grid))]
        errors = [mean.between_models or 0.0 for mean in means]
        drawn.append(
            Curve(
                f"{factor * training.length:,} tokens",
                list(10**places),
                [mean.value for mean in means],
                errors,
            )
        )
        marks.append((10**law, ""))
        numbers[str(factor * training.length)] = {
            "optimum_log10": best.place.value,
            "error": best.place.error,
            "inside": best.inside,
            "law_log10": law,
            "ntk_log10": ntk,
            "loss_by_theta": {f"{x:.6g}": m.value for x, m in zip(10**places, means, strict=True)},
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
    return Report(
        "thetas",
        "Theta and the loss before fine-tuning",
        LAW,
        [Table("The best theta by length", head, lines, note)],
        comparisons,
        [curves(drawn, "theta", "loss, nats", "Loss by theta (lines: the law)", marks, log=True)],
        {"lengths": numbers},
        "nats",
    )
