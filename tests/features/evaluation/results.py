"""A result as an evaluation of a small model leaves it, from made-up losses with the noise of a
text.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ropeconv.features.evaluation.cases import EvaluationSizes, Observation
from ropeconv.features.evaluation.result import Result, items_of
from ropeconv.features.evaluation.run import RunOutcome
from ropeconv.features.evaluation.statistics import summarise
from ropeconv.verbs.rows import Row, parse_rows

TRAINED = 8192
LENGTHS = (2048, 8192, 16384, 32768, 65536)
ROWS = {
    "base": (0.0, TRAINED),
    "yarn:4": (0.036, 4 * TRAINED),
    "by-parts:4": (0.02, 4 * TRAINED),
    "mixed:4": (0.05, 4 * TRAINED),
    "ntk:4": (0.01, 3 * TRAINED),
    "linear:4": (0.75, 4 * TRAINED),
}
"""Loss that a row adds at every length, and the length beyond which it breaks."""


def loss(row: str, length: int) -> float:
    """What a row adds to the loss of a text with `length` tokens before it."""
    added, reach = ROWS[row]
    return added + 0.3 * (2048 / length) ** 0.5 + 2.5 * max(0.0, np.log2(length / reach))


def made(
    rows: str = ",".join(ROWS),
    measures: Sequence[str] = ("growth", "position", "passkey"),
    documents: int = 1,
    trained: int = TRAINED,
    left_out: Callable[[str, Observation], bool] = lambda row, observation: False,
) -> Result:
    """A result. rows: as for --methods. measures: their names. documents: texts. trained: context
    in tokens. left_out: whether a row has not measured a number.
    """
    parsed = parse_rows(rows)
    points = {}
    for row in parsed:
        measured = [point for name in measures for point in MEASURES[name](row, documents)]
        points[row.name] = [point for point in measured if not left_out(row.name, point)]
    summary = summarise(RunOutcome(points), parsed, EvaluationSizes(LENGTHS, trained))
    texts = (
        ["moby-dick.txt"]
        if documents == 1
        else [f"essays/{number}.txt" for number in range(documents)]
    )
    return Result(
        source="SmolLM2-135M-Instruct",
        identity="0" * 64,
        runtime="transformers@5.23.0",
        device="cpu",
        dtype="bfloat16",
        trained=trained,
        lengths=list(LENGTHS),
        measures=list(measures),
        texts=texts,
        tokens_sha256="3f" * 32,
        seed=0,
        seconds=612.5,
        rows=summary.rows,
        cells=summary.cells,
        items=items_of(points, texts),
        notes=summary.notes,
        ropeconv="0.1.0",
    )


def growth(row: Row, documents: int) -> Iterator[Observation]:
    text = np.random.default_rng(1)
    noise = np.random.default_rng(len(row.name))
    for window in range(12):
        hard = text.normal(3, 0.4)
        for length in LENGTHS:
            value = hard + loss(row.name, length) + noise.normal(0, 0.02)
            yield Observation("growth", "loss", length, window % documents, window, value)


def position(row: Row, documents: int) -> Iterator[Observation]:
    text = np.random.default_rng(2)
    noise = np.random.default_rng(len(row.name))
    for window in range(6):
        for last in np.linspace(0, LENGTHS[-1], 33).astype(int)[1:]:
            value = text.normal(3, 0.4) + loss(row.name, last) + noise.normal(0, 0.05)
            yield Observation("position", "loss", int(last), window % documents, window, value)


def passkey(row: Row, documents: int) -> Iterator[Observation]:
    noise = np.random.default_rng(len(row.name))
    for window in range(4):
        for length in LENGTHS:
            for depth in (0.0, 0.25, 0.5, 0.75, 1.0):
                share = 1 / (1 + 3 * max(0.0, loss(row.name, length) - 0.4) * (2 - depth))
                right = float(noise.binomial(5, share)) / 5
                at = ("passkey", length, window % documents, window)
                yield Observation(at[0], "accuracy", *at[1:], right, depth, 5)
                yield Observation(at[0], "log_prob", *at[1:], float(np.log(share)), depth, 5)


MEASURES = {"growth": growth, "position": position, "passkey": passkey}
