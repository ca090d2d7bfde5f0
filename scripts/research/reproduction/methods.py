"""The tables of Su 2023: methods without any fine-tuning at eight times the trained length, with
and without log-n.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import ropeconv

from .comparing import Comparison, compare, estimate
from .measuring import Numbers, predict, repeated
from .published import ACCURACY, SU, difference
from .report import Report, Table, bars, percent
from .text import Corpus
from .training import Training, recipe

FACTOR = 8
COLUMNS = ("trained length", "repeated", "not repeated")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("theta", {}),
    "linear": ("linear", {}),
    "ntk-old": ("ntk-old", {}),
    "ntk-fixed": ("ntk-fixed", {}),
    **{
        f"mixed {exponent}": ("mixed", {"mixed_exponent": exponent})
        for exponent in (0.25, 0.5, 0.625, 0.75)
    },
    "by-parts": ("by-parts", {}),
    "yarn, attention factor 1": ("yarn", {"attention_factor": 1.0}),
    "yarn": ("yarn", {}),
}
WITH_LOG_N = ("base", "linear", "ntk-old", "ntk-fixed", "mixed 0.625", "by-parts")
COMPARED = (
    ("linear", "base"),
    ("ntk-old", "base"),
    ("ntk-fixed", "ntk-old"),
    ("mixed 0.625", "ntk-fixed"),
    ("mixed 0.75", "ntk-fixed"),
    ("mixed 0.625", "mixed 0.75"),
    ("by-parts", "ntk-fixed"),
    ("by-parts", "mixed 0.625"),
    ("yarn, attention factor 1", "ntk-fixed"),
    ("yarn, attention factor 1", "by-parts"),
    ("yarn", "yarn, attention factor 1"),
    ("ntk-fixed, log-n clamped", "ntk-fixed"),
    ("mixed 0.625, log-n clamped", "mixed 0.625"),
    ("ntk-fixed, log-n trained", "ntk-fixed, log-n clamped"),
    ("mixed 0.625, log-n trained", "mixed 0.625, log-n clamped"),
    ("linear, log-n trained", "linear"),
)


def rows(training: Training) -> dict[str, ropeconv.Recipe]:
    """Return the recipes that a model can be measured with, by the name of the row.

    Args:
        training: The training of the model. One with log-n has only rows with log-n.
    """

    def made(name: str, **modifiers: Any) -> ropeconv.Recipe:
        """Return the recipe of a method by its name in METHODS."""
        method, settings = METHODS[name]
        value = None if method == "theta" else float(FACTOR)
        return recipe(training, method, value, **settings, **modifiers)

    if training.log_n:
        return {f"{name}, log-n trained": made(name, log_n="full") for name in WITH_LOG_N}
    recipes = {name: made(name) for name in METHODS}
    for name in WITH_LOG_N:
        recipes[f"{name}, log-n clamped"] = made(name, log_n="clamped")
    return recipes


def trainings(training: Training) -> list[Training]:
    """The models of one seed: without and with log-n."""
    return [training, replace(training, log_n=True)]


def measure(model: Any, training: Training, corpus: Corpus) -> dict[str, Numbers]:
    """Return the share of right next tokens of each row in percent, float64 [columns, documents].

    The columns are text of the trained length, and text FACTOR times as long: the trained length
    repeated, and text that is not.

    Args:
        model: A model that was trained so.
        training: The training.
        corpus: With FACTOR times the trained length + 1 tokens of each document.
    """
    documents = len(corpus.test)
    whole = FACTOR * training.length
    ids = corpus.test[:, : whole + 1]
    pieces = ids[:, :whole].reshape(-1, training.length)
    again = repeated(ids, training.length)
    shares = {}
    for name, row in rows(training).items():
        short = predict(model, pieces, row).right.reshape(documents, -1).mean(1)
        long_repeated = predict(model, again, row).right.mean(1)
        long = predict(model, ids, row).right.mean(1)
        shares[name] = 100 * np.stack([short, long_repeated, long])
    return shares


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Return the table, comparisons and pictures of all methods without fine-tuning.

    Args:
        measured: As `measure` returns it for each seed, stacked: float64 [models, columns,
            documents].
        training: The training of a plain model, without log-n.
    """
    lines = []
    unpublished = (None,) * len(COLUMNS)
    for name, numbers in measured.items():
        published = [_published(value) for value in ACCURACY.get(name, unpublished)]
        lines.append([name, *_cells(numbers), *published])
    whole = FACTOR * training.length
    head = [f"{training.length} tokens", f"{whole:,}, repeated", f"{whole:,}, not repeated"]
    table = Table(
        f"Right next tokens in percent, factor {FACTOR}",
        ["row", *head, "published: 512", "4,096, rep.", "4,096"],
        lines,
    )
    panels = []
    for column in (1, 2):  # both of the long text
        title = f"Text {FACTOR} times as long, {COLUMNS[column]}"
        panels.append(bars(*_bars(measured, column), "right next tokens, %", title))
    return Report(
        "methods", "Methods without fine-tuning", SU, [table], comparisons(measured), panels
    )


def comparisons(measured: dict[str, Numbers]) -> list[Comparison]:
    """Return all pairs of rows that can be compared, on repeated text and on text that is not.

    Args:
        measured: By row, float64 [models, columns, documents].
    """
    compared = []
    for first, second in COMPARED:
        if first not in measured or second not in measured:
            continue
        for column in (1, 2):
            name = f"{first} minus {second}, {COLUMNS[column]}"
            one = measured[first][:, column]
            other = measured[second][:, column]
            compared.append(compare(name, one, other, difference(first, second, column)))
    return compared


def _cells(numbers: Numbers) -> list[str]:
    return [percent(estimate(numbers[:, column])) for column in range(len(COLUMNS))]


def _published(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bars(
    measured: dict[str, Numbers], column: int
) -> tuple[Sequence[str], list[float], list[float]]:
    estimates = [estimate(numbers[:, column]) for numbers in measured.values()]
    return list(measured), [bar.value for bar in estimates], [bar.error or 0.0 for bar in estimates]
