"""Fine-tuning to four times the trained length: bases around the bound, two ways to keep all
angles, and methods.

Men et al. 2024 (figure 6 and table 4), Peng et al. 2023 (NTK-aware against interpolation), Xiong et
al. 2023 (a larger base). All start from the same models and see the same windows.
"""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import ropeconv
from ropeconv.rope.forms import Plain
from ropeconv.rope.spec import RopeSpec

from .comparing import Comparison, compare, estimate
from .measuring import Numbers, predict, retrieved
from .published import MEN, PENG, XIONG
from .report import Curve, Report, Table, curves, nats, percent
from .text import Corpus
from .training import Training, optimise, recipe

FACTOR = 4
TUNING_STEPS, TUNING_RATE = 60, 1e-3
DISTANCES = (64, 160, 320, 480)
LOSSES = ("loss", "loss of the last quarter", "loss beyond")
LARGER = 50.0
"""How many times larger the base of Xiong et al. is: 500,000 instead of 10,000."""


def trainings(training: Training) -> list[Training]:
    """Return the training of the one model of a seed.

    Half of its windows have needles, and its base is below the bound, as in Llama 2.
    """
    steps = max(1, training.steps // 2)
    return [replace(training, base=1000.0, layers=2, steps=steps, tiled=0.0, needles=0.5)]


def split(training: Training) -> int:
    """The first pair that completes no period within the trained length, where both methods of Men
    et al. meet.
    """
    return math.ceil(
        training.head_dim / 2 * math.log(training.length / (2 * math.pi)) / math.log(training.base)
    )


def bases(training: Training) -> dict[str, float]:
    """Return the bases of the rows that change nothing else, by name.

    Args:
        training: The training of the model.
    """
    first = training.base * FACTOR ** (training.head_dim / (2 * split(training)))
    return {
        "unchanged": training.base,
        "five times": 5 * training.base,
        "Method 1": first,
        "fifty times": LARGER * training.base,
    }


def rows(training: Training) -> dict[str, ropeconv.Recipe]:
    """Return the recipes that a model is fine-tuned with, by name.

    Args:
        training: The training of the model.
    """
    return {
        **{name: recipe(training, "theta", base) for name, base in bases(training).items()},
        "Method 2": ropeconv.Recipe.from_dict(
            {"method": "piecewise", "parameters": {"spec": f"{FACTOR}@{split(training)}"}}
        ),
        **{name: recipe(training, name, float(FACTOR)) for name in ("linear", "ntk", "yarn")},
    }


def measure(model: Any, training: Training, corpus: Corpus) -> dict[str, Numbers]:
    """Fine-tune a model with each row, and return its losses in nats and needles found in percent.

    Such as {"yarn, loss": ..., "yarn, found at 64": ...}, each float64 [documents].

    Args:
        model: A model that was trained so.
        training: The training.
        corpus: The documents.
    """
    length = FACTOR * training.length
    ids = corpus.test[:, : 2 * length + 1]
    pieces = ids[:, : 2 * length].reshape(-1, length)
    tuning = replace(training, length=length, steps=TUNING_STEPS, rate=TUNING_RATE)
    numbers = {}
    for name, row in rows(training).items():
        tuned = copy.deepcopy(model).train()
        undo = ropeconv.patch(tuned, row)
        optimizer = torch.optim.AdamW(
            tuned.parameters(), TUNING_RATE, (0.9, 0.98), weight_decay=0.1
        )
        draw = np.random.default_rng((training.seed, 7))
        optimise(tuned, optimizer, tuning, corpus.train, corpus.vocabulary, draw)
        tuned.eval()

        losses = predict(tuned, pieces).loss
        last_quarter = losses[:, -length // 4 :]
        numbers[f"{name}, loss"] = losses.reshape(len(ids), -1).mean(1)
        numbers[f"{name}, loss of the last quarter"] = last_quarter.reshape(len(ids), -1).mean(1)
        numbers[f"{name}, loss beyond"] = predict(tuned, ids).loss[:, length:].mean(1)
        for distance in DISTANCES:
            numbers[f"{name}, found at {distance}"] = retrieved(tuned, pieces, distance, corpus)
        undo()
    return numbers


def violations(training: Training, row: ropeconv.Recipe) -> int:
    """At how many distances below the new length B(m) is negative."""
    spec = RopeSpec(
        training.head_dim, training.head_dim, Plain(training.base), training.length, training.length
    )
    return ropeconv.reach(row.schedule(spec).inv_freq, 0.0, FACTOR * training.length).count


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Return the table, comparisons and pictures of models that were fine-tuned in several ways.

    Args:
        measured: As `measure` returns it for each seed, stacked: float64 [models, documents].
        training: The training of a plain model.
    """
    training = trainings(training)[0]
    length = FACTOR * training.length
    smallest = ropeconv.bound(length, training.head_dim, training.head_dim).base
    base_by_row = bases(training)

    def curve(title: str, measure: str) -> Curve:
        """Return a measure by the base of the rows that change nothing else."""
        means = [estimate(measured[f"{name}, {measure}"]) for name in base_by_row]
        return Curve.of(title, list(base_by_row.values()), means)

    found = [curve(f"found at {distance}", f"found at {distance}") for distance in DISTANCES]
    losses = [curve(measure, measure) for measure in LOSSES]
    mark = [(smallest, "b*")]
    table = Table(
        f"Trained with {training.length} tokens and base {training.base:,.0f}, then with {length}"
        f" tokens for {TUNING_STEPS} steps; the smallest base for {length} tokens is b* ="
        f" {smallest:,.0f}",
        [
            "fine-tuned with",
            "B < 0",
            f"loss, {length}",
            "last quarter",
            f"{length} to {2 * length:,}",
            *(f"found at {distance}" for distance in DISTANCES),
        ],
        _lines(measured, training),
        f"Losses in nats per token. B < 0: distances below {length} at which B(m) is negative."
        " Found: percent of needles.",
    )
    return Report(
        "finetuning",
        "Fine-tuning to a longer context",
        f"{MEN}; {PENG}; {XIONG}",
        [table],
        comparisons(measured),
        [
            curves(found, "base", "found, %", "Retrieval after fine-tuning", mark, log=True),
            curves(losses, "base", "loss, nats", "Loss after fine-tuning", mark, log=True),
        ],
        unit="nats, or percentage points",
    )


def _lines(measured: dict[str, Numbers], training: Training) -> list[list[str]]:
    """Return the line of each row: distances with negative sums, losses, and needles.

    Args:
        measured: By row and measure, float64 [models, documents].
        training: The training of the model.
    """
    base_by_row = bases(training)
    lines = []
    for name, row in rows(training).items():
        title = name
        if name in base_by_row:
            title = f"{name}: {base_by_row[name]:,.0f}"
        line = [title, f"{violations(training, row)}"]
        for measure in LOSSES:
            line.append(nats(estimate(measured[f"{name}, {measure}"])))
        for distance in DISTANCES:
            line.append(percent(estimate(measured[f"{name}, found at {distance}"])))
        lines.append(line)
    return lines


def comparisons(measured: dict[str, Numbers]) -> list[Comparison]:
    """Return the pairs of rows of which something was claimed, compared.

    Args:
        measured: By row and measure, float64 [models, documents].
    """
    # two rows, the measures, and the sign of the first minus the second; None without a claim
    far = [f"found at {distance}" for distance in DISTANCES[-2:]]
    loss = "loss"
    last_quarter = "loss of the last quarter"
    claims: list[tuple[str, str, list[str], int | None]] = [
        ("unchanged", "Method 1", [loss], 0),
        ("five times", "Method 1", [loss], 0),
        ("unchanged", "Method 1", far, -1),
        ("five times", "Method 1", far, -1),
        ("Method 2", "Method 1", [loss], None),
        ("Method 2", "Method 1", far, -1),
        ("ntk", "linear", [loss, last_quarter], 1),
        ("yarn", "linear", [loss, last_quarter, "loss beyond"], -1),
        ("yarn", "ntk", [loss, last_quarter, "loss beyond"], -1),
        ("fifty times", "linear", [loss], -1),
        ("fifty times", "unchanged", [loss], -1),
        ("fifty times", "unchanged", far, 1),
    ]
    compared = []
    for first, second, measures, claim in claims:
        for measure in measures:
            name = f"{measure}: {first} minus {second}"
            one = measured[f"{first}, {measure}"]
            other = measured[f"{second}, {measure}"]
            compared.append(compare(name, one, other, claimed=claim))
    return compared
