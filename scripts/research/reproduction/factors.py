"""Methods without fine-tuning by factor: NTK against interpolation, dynamic NTK, and YaRN against
mixed.

Peng et al. 2023 and Su 2023. They are measured on the models that `finetuning` starts from.
"""

from typing import Any

import numpy as np

import ropeconv

from .comparing import Comparison, compare, estimate
from .finetuning import trainings
from .measuring import Numbers, predict
from .optimum import optimum
from .published import PENG, SU
from .report import Curve, Report, Table, curves, nats
from .text import Corpus
from .training import Training, recipe

__all__ = ["measure", "report", "trainings"]

FACTORS = (2, 4, 8, 16)
EXPONENTS = (0.0, 0.25, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Of mixed: 0 is linear, 1 is NTK-fixed."""
DOCUMENTS = 12


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
    """The mean loss in nats within each length up to factor times the trained one, float64
    [lengths, documents].

    model: trained as `how` says. The lengths are the trained one times 1 and FACTORS.
    """

    def by_length(factor: int, row: ropeconv.Recipe | None) -> Numbers:
        losses = predict(model, corpus.test[:DOCUMENTS, : factor * training.length + 1], row).loss
        return np.stack(
            [
                losses[:, : times * training.length].mean(1)
                for times in (1, *FACTORS)
                if times <= factor
            ]
        )

    numbers = {"base": by_length(FACTORS[-1], None)}
    for factor in FACTORS:
        numbers |= {
            f"{name}, {factor}": by_length(factor, row)
            for name, row in rows(training, factor).items()
        }
    return numbers


def report(measured: dict[str, Numbers], training: Training) -> Report:
    """Tables, comparisons and the picture. measured: by row and factor, float64 [models, lengths,
    documents].
    """
    training = trainings(training)[0]
    names = ["base", *rows(training, FACTORS[0])]
    lengths = [times * training.length for times in (1, *FACTORS)]

    def whole(name: str, index: int) -> Numbers:
        """The loss within factor times the trained length, with that factor."""
        return (
            measured["base"][:, index + 1]
            if name == "base"
            else measured[f"{name}, {FACTORS[index]}"][:, -1]
        )

    at_factor = [
        [name, *(nats(estimate(whole(name, index))) for index in range(len(FACTORS)))]
        for name in names
    ]
    best = [
        optimum(
            np.array(EXPONENTS),
            np.stack([whole(f"mixed {exponent}", index) for exponent in EXPONENTS], 1),
        )
        for index in range(len(FACTORS))
    ]
    at_factor.append(
        [
            "best exponent",
            *(f"{optimum.place.value:.2f} ± {optimum.place.error or 0:.2f}" for optimum in best),
        ]
    )
    static = f"ntk, {FACTORS[-1]}"
    by_length = {
        "base": measured["base"],
        f"ntk {FACTORS[-1]}": measured[static],
        "dynamic ntk": np.stack(
            [measured["base"][:, 0], *(whole("ntk", index) for index in range(len(FACTORS)))], 1
        ),
    }
    tables = [
        Table(
            f"Loss within s times {training.length} tokens, without fine-tuning",
            ["method", *(f"s = {factor}" for factor in FACTORS)],
            at_factor,
            "In nats per token. Mixed with exponent 0 is position interpolation, with 1 NTK-fixed.",
        ),
        Table(
            "One factor for all lengths, and one that grows with the length",
            ["method", *(f"{length:,} tokens" for length in lengths)],
            [
                [name, *(nats(estimate(numbers[:, index])) for index in range(len(lengths)))]
                for name, numbers in by_length.items()
            ],
            "In nats per token. Dynamic NTK has the factor length / trained length.",
        ),
    ]
    swept = [
        Curve.of(
            f"s = {factor}",
            EXPONENTS,
            [
                estimate(whole(f"mixed {exponent}", index) - whole("yarn", index))
                for exponent in EXPONENTS
            ],
        )
        for index, factor in enumerate(FACTORS)
    ]
    by_method = [
        Curve.of(name, lengths, [estimate(numbers[:, index]) for index in range(len(lengths))])
        for name, numbers in by_length.items()
    ]
    return Report(
        "factors",
        "Factors without fine-tuning",
        f"{PENG}; {SU}",
        tables,
        [
            *(
                comparison
                for index, factor in enumerate(FACTORS)
                for comparison in comparisons(whole, index, factor)
            ),
            *(
                compare(
                    f"dynamic ntk minus {name}, {length:,} tokens",
                    by_length["dynamic ntk"][:, index],
                    by_length[name][:, index],
                    claimed=-1,
                )
                for name, start in ((f"ntk {FACTORS[-1]}", 0), ("base", 1))
                for index, length in list(enumerate(lengths))[start : len(lengths) - 1 + start]
            ),
        ],
        [
            curves(
                swept,
                "exponent of mixed",
                "loss minus that of YaRN, nats",
                "Loss of mixed, compared with YaRN",
            ),
            curves(
                by_method, "tokens", "loss, nats", "Loss by length, fixed and dynamic NTK", log=True
            ),
        ],
        unit="nats",
    )


def comparisons(whole: Any, index: int, factor: int) -> list[Comparison]:
    """What is compared at a factor. whole: the losses by method and index of the factor."""
    claims = [
        ("ntk", "mixed 0.0", -1),
        ("yarn", "mixed 0.625", None),
        ("yarn, attention factor 1", "mixed 0.625", None),
        ("yarn", "ntk", -1),
        ("mixed 0.625", "mixed 1.0", -1),
    ]
    return [
        compare(
            f"{first} minus {second}, s = {factor}",
            whole(first, index),
            whole(second, index),
            claimed=claim,
        )
        for first, second, claim in claims
    ]
