"""Tuned: what a search leaves, which is a recipe with its evidence; and the file of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..version import __version__

FORMAT = 1
"""Of the file, under the key `ropeconv_tune`, by which `--recipe` knows it."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over held-out windows, in nats per token.

    value: the mean. difference: minus that of the best formula, paired by window; None in its own row. error: standard
    error of the difference.
    """

    value: float
    difference: float | None = None
    error: float | None = None


class TunedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule on the held-out windows.

    name: in tables. recipe: None for the model as it is. beyond, inside, needle: losses beyond and inside the trained
    context, and of hidden numbers, None where there are none. total: `beyond + price * inside + needles * needle`.
    curve: loss by position, at `positions`, in nats per token.
    """

    name: str
    recipe: dict[str, Any] | None
    beyond: Measured
    inside: Measured
    total: Measured
    needle: Measured | None = None
    curve: list[float] = []


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A tuned recipe, or the best formula where no better one was found, with its evidence.

    recipe: to apply. better: whether it was found by the search, and is better than every formula on held-out text
    beyond three standard errors. sentence: says so. best_formula: name of the row that the others are compared with.
    source: how the user named the model. identity: what tells it from others. runtime, device, dtype: which computed
    it. trained, context: in tokens. steps, seed, regularise: of the search, with the steps that were done.
    price, needles: weights of the loss inside and of hidden numbers. texts: names of what was searched with, held_out:
    of the rest. tokens_sha256: of all tokens. windows, held_windows: how many. searched: total minus that of the
    formula that the search began with, on its own windows. trace: the same after each step. divisors: theta_i /
    inv_freq_i of each pair that rotates in what was found, formula_divisors: those of the best formula.
    attention_factor: that was found. positions: of the curves of rows, in tokens. notes: sentences that belong to the
    numbers.
    """

    recipe: dict[str, Any]
    better: bool
    sentence: str
    best_formula: str
    source: str
    identity: str
    runtime: str
    device: str
    dtype: str
    trained: int
    context: int
    steps: int
    seed: int
    regularise: float
    price: float
    needles: float
    texts: list[str]
    held_out: list[str]
    tokens_sha256: str
    windows: int
    held_windows: int
    searched: float
    trace: list[float]
    divisors: list[float]
    formula_divisors: list[float]
    attention_factor: float
    positions: list[int]
    rows: list[TunedRow]
    notes: list[str] = []
    ropeconv_tune: int = FORMAT
    ropeconv: str = __version__


def write_tuned(tuned: Tuned, path: Path) -> None:
    """Writes a result as JSON, which `--recipe` takes. path: of the file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tuned)) + b"\n")
