"""The bound on the base: below it the loss stays, and retrieval is lost (Men et al. 2024)."""

from dataclasses import replace
from typing import Any

import numpy as np

import ropeconv

from .comparing import Comparison, compare, estimate
from .measuring import Numbers, predict, retrieved
from .published import MEN
from .report import Curve, Report, Table, curves, nats, percent
from .text import Corpus
from .training import VALUES, Training, frequencies, trained_with

LENGTH = 256
TIMES_BOUND = (1 / 200, 1 / 20, 1.1, 10.0)
"""Bases that are trained with, as multiples of the smallest one; 1.1 is within the window that it
opens.
"""
BEYOND = 4
REPEATS = 2  # needles in each piece of a document and at each distance
DISTANCES = (32, 64, 128, 192, 240)


def trainings(training: Training) -> list[Training]:
    """The models of one seed, in the order of their bases. training: these take half its steps."""
    smallest = ropeconv.bound(LENGTH, training.head_dim, training.head_dim).base
    short = replace(
        training, length=LENGTH, steps=max(1, training.steps // 2), tiled=0.0, needles=1.0
    )
    return [replace(short, base=round(share * smallest, 1)) for share in TIMES_BOUND]


def measure(model: Any, training: Training, corpus: Corpus) -> dict[str, Numbers]:
    """Return losses in nats and needles found in percent, by the name of the model and the measure.

    Such as {"123.4, loss": ...}, each float64 [documents].

    Args:
        model: A model that was trained so.
        training: The training.
        corpus: With BEYOND times LENGTH + 1 tokens of each document.
    """
    ids = corpus.test[:, : BEYOND * LENGTH + 1]
    recipe = trained_with(training)
    pieces = ids[:, : BEYOND * LENGTH].reshape(-1, LENGTH)  # as long as in training
    numbers = {
        "loss": predict(model, pieces, recipe).loss.reshape(len(ids), -1).mean(1),
        "loss beyond": predict(model, ids, recipe).loss[:, LENGTH:].mean(1),
    }
    for distance in DISTANCES:
        found = retrieved(model, pieces, distance, corpus, recipe, REPEATS)
        numbers[f"retrieved {distance}"] = found
    return {f"{name_of(training)}, {measure}": values for measure, values in numbers.items()}


def name_of(training: Training) -> str:
    """The name of a model in the numbers."""
    return f"{training.base:g}" + (
        f", {training.rotated:g} rotated" if training.rotated < 1 else ""
    )


def effective_length(training: Training) -> int | None:
    """The largest distance in tokens below the first with B(m) < 0, for the base of a model; None
    without one.
    """
    return ropeconv.reach(frequencies(training), 0.0, 1 << 20).effective_length


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Return the table, comparisons and pictures of models with several bases.

    Args:
        measured: As `measure` returns it for each seed, stacked: float64 [models, documents].
        training: The training of a plain model.
    """
    models = trainings(training)
    found_at = [f"retrieved {distance}" for distance in DISTANCES]

    # by measure, float64 [models, bases, documents]
    scores = {}
    for measure in ("loss", "loss beyond", *found_at):
        by_base = [measured[f"{name_of(model)}, {measure}"] for model in models]
        scores[measure] = np.stack(by_base, 1)

    curves_of_bases = []
    for index, model in enumerate(models):
        means = [estimate(scores[name][:, index]) for name in found_at]
        curves_of_bases.append(Curve.of(f"base {model.base:,.0f}", DISTANCES, means))
    return Report(
        "bound",
        "The bound on the base",
        MEN,
        [_table_of_bases(scores, models)],
        _comparisons(scores, models),
        [
            curves(curves_of_bases, "distance, tokens", "found, %", "Retrieval by distance"),
            _losses(scores, models),
        ],
        {
            "bases": [model.base for model in models],
            "effective_lengths": [effective_length(model) for model in models],
        },
        "nats, or percentage points",
    )


def _table_of_bases(scores: dict[str, Numbers], models: list[Training]) -> Table:
    """Return the table with a line for each base: its effective length, losses and needles.

    Args:
        scores: By measure, float64 [models, bases, documents].
        models: The trainings, in the order of their bases.
    """
    lines = []
    for index, (share, model) in enumerate(zip(TIMES_BOUND, models, strict=True)):
        reached = effective_length(model)
        line = [
            f"{model.base:,.1f}",
            f"{share:.3g}",
            "all" if reached is None else f"{reached:,}",
            nats(estimate(scores["loss"][:, index])),
            nats(estimate(scores["loss beyond"][:, index])),
        ]
        for distance in DISTANCES:
            line.append(percent(estimate(scores[f"retrieved {distance}"][:, index])))
        lines.append(line)

    head_dim = models[0].head_dim
    smallest = f"{ropeconv.bound(LENGTH, head_dim, head_dim).base:,.1f}"
    head = [
        "base",
        "of b*",
        "effective length",
        f"loss, {LENGTH}",
        f"loss, {LENGTH} to {BEYOND * LENGTH:,}",
        *(f"found at {distance}" for distance in DISTANCES),
    ]
    return Table(
        f"Models trained with {LENGTH} tokens; the smallest base for that length is b* ="
        f" {smallest}",
        head,
        lines,
        f"Losses in nats per token. Found: percent of needles, one of {VALUES} tokens that stand"
        " nowhere else, so many tokens before their cue.",
    )


def _comparisons(scores: dict[str, Numbers], models: list[Training]) -> list[Comparison]:
    """Return each base below the bound, compared with the one that is just above it.

    Args:
        scores: By measure, float64 [models, bases, documents].
        models: The trainings, in the order of their bases.
    """
    above = TIMES_BOUND.index(1.1)
    # a measure, its name, and the sign that was claimed: about the same inside, worse beyond
    claims = [("loss", "loss inside", 0), ("loss beyond", "loss beyond", -1)]
    for distance in DISTANCES[-2:]:
        claims.append((f"retrieved {distance}", f"found at {distance}", -1))
    comparisons = []
    for measure, title, sign in claims:
        for index in range(above):
            name = f"{title}, base {models[index].base:,.1f} minus {models[above].base:,.1f}"
            first, second = _pair(scores[measure], index, above)
            comparisons.append(compare(name, first, second, None, sign))
    return comparisons


def _pair(numbers: Numbers, index: int, above: int) -> tuple[Numbers, Numbers]:
    return numbers[:, index], numbers[:, above]


def _losses(scores: dict[str, Numbers], bases: list[Training]) -> Any:
    kinds = (("loss", f"within {LENGTH}"), ("loss beyond", f"{LENGTH} to {BEYOND * LENGTH:,}"))
    by_loss = [
        Curve.of(
            name,
            [model.base for model in bases],
            [estimate(scores[key][:, index]) for index in range(len(bases))],
        )
        for key, name in kinds
    ]
    smallest = ropeconv.bound(LENGTH, bases[0].head_dim, bases[0].head_dim).base
    return curves(by_loss, "base", "loss, nats", "Loss by base", [(smallest, "b*")], log=True)
