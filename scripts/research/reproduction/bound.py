"""The bound on the base: below it the loss stays, and retrieval is lost (Men et al. 2024)."""

from dataclasses import replace
from typing import Any

import numpy as np

import ropeconv

from .comparing import compare, estimate
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
    """Losses in nats and needles found in percent by the name of the model, float64 [documents].

    model: trained as `how` says. corpus: with BEYOND times LENGTH + 1 tokens of each document.
    """
    ids = corpus.test[:, : BEYOND * LENGTH + 1]
    recipe = trained_with(training)
    pieces = ids[:, : BEYOND * LENGTH].reshape(-1, LENGTH)
    numbers = {
        "loss": predict(model, pieces, recipe).loss.reshape(len(ids), -1).mean(1),
        "loss beyond": predict(model, ids, recipe).loss[:, LENGTH:].mean(1),
    }
    for distance in DISTANCES:
        numbers[f"retrieved {distance}"] = retrieved(
            model, pieces, distance, corpus, recipe, REPEATS
        )
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
    """Tables, comparisons and pictures.

    measured: by model and measure, float64 [models, documents]. training: the training of plain
    models.
    """
    bases = trainings(training)
    names = ["loss", "loss beyond", *(f"retrieved {distance}" for distance in DISTANCES)]
    scores = {
        name: np.stack([measured[f"{name_of(base)}, {name}"] for base in bases], 1)
        for name in names
    }
    lines = [
        [
            f"{model.base:,.1f}",
            f"{share:.3g}",
            f"{reached:,}" if (reached := effective_length(model)) is not None else "all",
            nats(estimate(scores["loss"][:, index])),
            nats(estimate(scores["loss beyond"][:, index])),
            *(
                percent(estimate(scores[f"retrieved {distance}"][:, index]))
                for distance in DISTANCES
            ),
        ]
        for index, (share, model) in enumerate(zip(TIMES_BOUND, bases, strict=True))
    ]
    smallest = f"{ropeconv.bound(LENGTH, bases[0].head_dim, bases[0].head_dim).base:,.1f}"
    head = [
        "base",
        "of b*",
        "effective length",
        f"loss, {LENGTH}",
        f"loss, {LENGTH} to {BEYOND * LENGTH:,}",
    ]
    table = Table(
        f"Models trained with {LENGTH} tokens; the smallest base for that length is b* ="
        f" {smallest}",
        [*head, *(f"found at {distance}" for distance in DISTANCES)],
        lines,
        f"Losses in nats per token. Found: percent of needles, one of {VALUES} tokens that stand"
        " nowhere else, so many tokens before their cue.",
    )
    above = TIMES_BOUND.index(1.1)
    comparisons = [
        compare(
            f"{title}, base {model.base:,.1f} minus {bases[above].base:,.1f}",
            *_pair(scores[key], index, above),
            None,
            sign,
        )
        for key, title, sign in (
            ("loss", "loss inside", 0),
            ("loss beyond", "loss beyond", -1),
            *((f"retrieved {distance}", f"found at {distance}", -1) for distance in DISTANCES[-2:]),
        )
        for index, model in enumerate(bases)
        if index < above
    ]
    by_base = [
        Curve.of(
            f"base {model.base:,.0f}",
            DISTANCES,
            [estimate(scores[f"retrieved {distance}"][:, index]) for distance in DISTANCES],
        )
        for index, model in enumerate(bases)
    ]
    return Report(
        "bound",
        "The bound on the base",
        MEN,
        [table],
        comparisons,
        [
            curves(by_base, "distance, tokens", "found, %", "Retrieval by distance"),
            _losses(scores, bases),
        ],
        {
            "bases": [model.base for model in bases],
            "effective_lengths": [effective_length(model) for model in bases],
        },
        "nats, or percentage points",
    )


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
