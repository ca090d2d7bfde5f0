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
    """The rows that a model can be measured with, by name. training: its training, with or without
    log-n.
    """

    def made(name: str, **modifiers: Any) -> ropeconv.Recipe:
        method, settings = METHODS[name]
        return recipe(
            training, method, None if method == "theta" else float(FACTOR), **settings, **modifiers
        )

    if training.log_n:
        return {f"{name}, log-n trained": made(name, log_n="full") for name in WITH_LOG_N}
    return {name: made(name) for name in METHODS} | {
        f"{name}, log-n clamped": made(name, log_n="clamped") for name in WITH_LOG_N
    }


def trainings(training: Training) -> list[Training]:
    """The models of one seed: without and with log-n."""
    return [training, replace(training, log_n=True)]


def measure(model: Any, training: Training, corpus: Corpus) -> dict[str, Numbers]:
    """The accuracy of each row in percent, float64 [columns, documents].

    model: trained as `how` says. corpus: with FACTOR times the trained length + 1 tokens of each
    document.
    """
    documents = len(corpus.test)
    whole = FACTOR * training.length
    ids = corpus.test[:, : whole + 1]
    pieces = ids[:, :whole].reshape(-1, training.length)
    again = repeated(ids, training.length)
    shares = {}
    for name, row in rows(training).items():
        short = predict(model, pieces, row).right.reshape(documents, -1).mean(1)
        shares[name] = 100 * np.stack(
            [short, *(predict(model, batch, row).right.mean(1) for batch in (again, ids))]
        )
    return shares


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Tables, comparisons and pictures. measured: by row, float64 [models, columns, documents],
    without log-n.
    """
    lines = [
        [name, *_cells(numbers), *map(_published, ACCURACY.get(name, (None,) * len(COLUMNS)))]
        for name, numbers in measured.items()
    ]
    head = [
        f"{training.length} tokens",
        f"{FACTOR * training.length:,}, repeated",
        f"{FACTOR * training.length:,}, not repeated",
    ]
    table = Table(
        f"Right next tokens in percent, factor {FACTOR}",
        ["row", *head, "published: 512", "4,096, rep.", "4,096"],
        lines,
    )
    return Report(
        "methods",
        "Methods without fine-tuning",
        SU,
        [table],
        comparisons(measured),
        [
            bars(
                *_bars(measured, column),
                "right next tokens, %",
                f"Text {FACTOR} times as long, {COLUMNS[column]}",
            )
            for column in (1, 2)
        ],
    )


def comparisons(measured: dict[str, Numbers]) -> list[Comparison]:
    """All that can be compared, on repeated text and on text that is not. measured: as in
    `report`.
    """
    return [
        compare(
            f"{first} minus {second}, {COLUMNS[column]}",
            measured[first][:, column],
            measured[second][:, column],
            difference(first, second, column),
        )
        for first, second in COMPARED
        if first in measured and second in measured
        for column in (1, 2)
    ]


def _cells(numbers: Numbers) -> list[str]:
    return [percent(estimate(numbers[:, column])) for column in range(len(COLUMNS))]


def _published(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bars(
    measured: dict[str, Numbers], column: int
) -> tuple[Sequence[str], list[float], list[float]]:
    estimates = [estimate(numbers[:, column]) for numbers in measured.values()]
    return list(measured), [bar.value for bar in estimates], [bar.error or 0.0 for bar in estimates]
