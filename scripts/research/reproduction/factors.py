"""Methods without fine-tuning by factor: NTK against interpolation, dynamic NTK, and YaRN against
mixed.

Peng et al. 2023 and Su 2023. They are measured on the models that `finetuning` starts from.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import ropeconv

from .comparing import Comparison, compare, estimate
from .finetuning import trainings
from .measuring import Numbers, predict
from .optimum import optimum
from .published import PENG, SU
from .report import Curve, Panel, Report, Table, curves, nats
from .text import Corpus
from .training import Training, recipe

__all__ = ["measure", "report", "trainings"]

FACTORS = (2, 4, 8, 16)
EXPONENTS = (0.0, 0.25, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Of mixed: 0 is linear, 1 is NTK-fixed."""
DOCUMENTS = 12
Losses = Callable[[str, int], Numbers]
"""Returns the losses of a method at the index of a factor, float64 [models, documents]."""


def rows(training: Training, factor: int) -> dict[str, ropeconv.Recipe]:
    """The methods with a factor, by name. training: the training of the models."""
    return {
        "ntk": recipe(training, "ntk", float(factor)),
        "yarn": recipe(training, "yarn", float(factor)),
        "yarn, attention factor 1": recipe(training, "yarn", float(factor), attention_factor=1.0),
        **{
            f"mixed {exponent}": recipe(training, "mixed", float(factor), mixed_exponent=exponent)
            for exponent in EXPONENTS
        },
    }


def measure(model: Any, training: Training, corpus: Corpus) -> dict[str, Numbers]:
    """Return mean losses in nats, by method and factor: float64 [lengths, documents].

    Such as {"base": ..., "yarn, 4": ...}. The lengths are the trained one times 1 and FACTORS, as
    far as a method reaches.

    Args:
        model: A model that was trained so.
        training: The training.
        corpus: The documents.
    """

    def by_length(factor: int, row: ropeconv.Recipe | None) -> Numbers:
        """Return the mean loss within each length up to a factor, with the recipe of a row."""
        ids = corpus.test[:DOCUMENTS, : factor * training.length + 1]
        losses = predict(model, ids, row).loss
        means = []
        for times in (1, *FACTORS):
            if times <= factor:
                means.append(losses[:, : times * training.length].mean(1))
        return np.stack(means)

    numbers = {"base": by_length(FACTORS[-1], None)}
    for factor in FACTORS:
        for name, row in rows(training, factor).items():
            numbers[f"{name}, {factor}"] = by_length(factor, row)
    return numbers


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Return the tables, comparisons and pictures of methods with several factors.

    Args:
        measured: As `measure` returns it for each seed, stacked: float64 [models, lengths,
            documents].
        training: The training of a plain model.
    """
    training = trainings(training)[0]
    lengths = [times * training.length for times in (1, *FACTORS)]

    def whole(name: str, index: int) -> Numbers:
        """The loss within factor times the trained length, with that factor."""
        if name == "base":
            return measured["base"][:, index + 1]
        return measured[f"{name}, {FACTORS[index]}"][:, -1]

    # the losses by length, with one factor for all lengths and with one that grows
    largest = FACTORS[-1]
    growing = [measured["base"][:, 0], *(whole("ntk", index) for index in range(len(FACTORS)))]
    by_length = {
        "base": measured["base"],
        f"ntk {largest}": measured[f"ntk, {largest}"],
        "dynamic ntk": np.stack(growing, 1),
    }
    names = ["base", *rows(training, FACTORS[0])]
    tables = [
        Table(
            f"Loss within s times {training.length} tokens, without fine-tuning",
            ["method", *(f"s = {factor}" for factor in FACTORS)],
            _lines_by_factor(names, whole),
            "In nats per token. Mixed with exponent 0 is position interpolation, with 1 NTK-fixed.",
        ),
        Table(
            "One factor for all lengths, and one that grows with the length",
            ["method", *(f"{length:,} tokens" for length in lengths)],
            _lines_by_length(by_length),
            "In nats per token. Dynamic NTK has the factor length / trained length.",
        ),
    ]

    compared = []
    for index, factor in enumerate(FACTORS):
        compared += comparisons(whole, index, factor)
    compared += _dynamic_comparisons(by_length, lengths)
    return Report(
        "factors",
        "Factors without fine-tuning",
        f"{PENG}; {SU}",
        tables,
        compared,
        _panels(whole, by_length, lengths),
        unit="nats",
    )


def _lines_by_factor(names: list[str], whole: Losses) -> list[list[str]]:
    """Return the loss of each method with each factor, and the best exponent of mixed."""
    indices = range(len(FACTORS))
    lines = []
    for name in names:
        lines.append([name, *(nats(estimate(whole(name, index))) for index in indices)])
    best = ["best exponent"]
    for index in indices:
        losses = np.stack([whole(f"mixed {exponent}", index) for exponent in EXPONENTS], 1)
        place = optimum(np.array(EXPONENTS), losses).place
        best.append(f"{place.value:.2f} ± {place.error or 0:.2f}")
    return [*lines, best]


def _lines_by_length(by_length: dict[str, Numbers]) -> list[list[str]]:
    """Return the loss of each method within each length.

    Args:
        by_length: By method, float64 [models, lengths, documents].
    """
    lines = []
    for name, losses in by_length.items():
        cells = [nats(estimate(losses[:, index])) for index in range(losses.shape[1])]
        lines.append([name, *cells])
    return lines


def _dynamic_comparisons(by_length: dict[str, Numbers], lengths: list[int]) -> list[Comparison]:
    """Return dynamic NTK compared with the largest factor, and with the unchanged model.

    At the largest length it is the largest factor, and at the trained one the unchanged model, so
    these are left out.

    Args:
        by_length: By method, float64 [models, lengths, documents].
        lengths: The lengths in tokens.
    """
    compared = []
    largest = len(lengths) - 1
    with_ntk = [(f"ntk {FACTORS[-1]}", index) for index in range(largest)]
    with_base = [("base", index) for index in range(1, largest + 1)]
    for name, index in (*with_ntk, *with_base):
        compared.append(
            compare(
                f"dynamic ntk minus {name}, {lengths[index]:,} tokens",
                by_length["dynamic ntk"][:, index],
                by_length[name][:, index],
                claimed=-1,
            )
        )
    return compared


def _panels(whole: Losses, by_length: dict[str, Numbers], lengths: list[int]) -> list[Panel]:
    """Return the pictures: mixed by its exponent, and methods by the length.

    Args:
        whole: The losses by method and index of the factor.
        by_length: By method, float64 [models, lengths, documents].
        lengths: The lengths in tokens.
    """
    by_exponent = []
    for index, factor in enumerate(FACTORS):
        yarn = whole("yarn", index)
        means = [estimate(whole(f"mixed {exponent}", index) - yarn) for exponent in EXPONENTS]
        by_exponent.append(Curve.of(f"s = {factor}", EXPONENTS, means))
    by_method = []
    for name, losses in by_length.items():
        means = [estimate(losses[:, index]) for index in range(len(lengths))]
        by_method.append(Curve.of(name, lengths, means))
    return [
        curves(
            by_exponent,
            "exponent of mixed",
            "loss minus that of YaRN, nats",
            "Loss of mixed, compared with YaRN",
        ),
        curves(
            by_method, "tokens", "loss, nats", "Loss by length, fixed and dynamic NTK", log=True
        ),
    ]


def comparisons(whole: Losses, index: int, factor: int) -> list[Comparison]:
    """Return what is compared at a factor.

    Args:
        whole: The losses by method and index of the factor.
        index: That of this factor.
        factor: The factor.
    """
    claims = [
        ("ntk", "mixed 0.0", -1),
        ("yarn", "mixed 0.625", None),
        ("yarn, attention factor 1", "mixed 0.625", None),
        ("yarn", "ntk", -1),
        ("mixed 0.625", "mixed 1.0", -1),
    ]
    compared = []
    for first, second, claim in claims:
        name = f"{first} minus {second}, s = {factor}"
        compared.append(compare(name, whole(first, index), whole(second, index), claimed=claim))
    return compared
