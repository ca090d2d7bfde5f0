"""Conditions of --fail-if, such as `yarn:4 > base @2T`: true only beyond three standard errors."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from ..errors import RecipeError, RopeconvError, UsageError
from .asked import Asked, in_trained, parse_lengths
from .measures import REGISTRY
from .metric import metric_of
from .result import ERRORS, Cell, Result
from .tables import BY_POSITION, headline

GROWTH = "growth"
PATTERN = re.compile(r"(?P<left>[^<>]+)(?P<sign>[<>])(?P<right>[^<>=@][^<>@]*)@(?P<length>[^<>@]+)")
EXAMPLE = "write it like 'yarn:4 > base @2T' or 'passkey yarn:4 < 0.9 @2T'"


@dataclass(frozen=True)
class Condition:
    """A comparison of a row with another one, or with a number.

    text: as the user wrote it. measure: of which the headline is compared. left: name of a row. above: whether it has
    to be more, else less. right: name of a row, or a number. column: length in tokens.
    """

    text: str
    measure: str
    left: str
    above: bool
    right: str | float
    column: int


@dataclass(frozen=True)
class Judged:
    """Whether a condition is true beyond three standard errors, and the numbers in a sentence."""

    met: bool
    sentence: str


def parse_condition(text: str, rows: Collection[str], measures: Collection[str], asked: Asked) -> Condition:
    """A condition from its text. Raises UsageError for one that this evaluation cannot judge.

    text: `[MEASURE] ROW < ROW @LENGTH`, or > and a number. rows, measures: names of those that run. asked: sizes.
    """
    found = PATTERN.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--fail-if {text!r} is no condition; {EXAMPLE}")
    left, right, measure = found["left"].strip(), found["right"].strip(), GROWTH
    first, _, rest = left.partition(" ")
    if rest and first in (*measures, *REGISTRY):
        left, measure = rest.strip(), first
    if measure not in measures:
        raise UsageError(f"--fail-if {text!r} needs {measure}, which is not measured; add it to --measure")
    for name in (left, right):
        if name not in rows and (name == left or _number(right) is None):
            raise UsageError(f"--fail-if {text!r} names {name!r}, which is no row; the rows are {', '.join(rows)}")
    number = None if right in rows else _number(right)
    column = _column(text, found["length"], asked)
    if measure not in BY_POSITION and column not in asked.lengths:
        raise UsageError(f"--fail-if {text!r} needs {column:,} tokens, which are not measured; add them to --lengths")
    return Condition(text, measure, left, found["sign"] == ">", right if number is None else number, column)


def judge(condition: Condition, result: Result) -> Judged:
    """Whether a condition is true. Raises RopeconvError where the numbers that it needs are missing.

    Rows of which neither is the first are compared by their differences to it, with the sum of both errors, which the
    error of a paired difference never exceeds.
    """
    left = _cell(condition, condition.left, result)
    metric = metric_of(left.metric)
    if isinstance(condition.right, float):
        apart, error = left.value - condition.right, left.error
    else:
        right = _cell(condition, condition.right, result)
        apart = (left.difference or 0.0) - (right.difference or 0.0)
        known = [cell.difference_error for cell in (left, right) if cell.difference is not None]
        error = None if None in known else sum(one for one in known if one is not None)
    if error is None:
        raise _unknown(condition, "a single window has no error")
    met = (apart if condition.above else -apart) > ERRORS * error
    unit = f" {metric.unit}" if metric.unit else ""
    place = f"{condition.measure} at {in_trained(condition.column, result.trained)}"
    return Judged(
        met,
        f"{condition.text} is {'true' if met else 'not shown'}: {place}, the difference is {metric.difference(apart)} "
        f"± {metric.error(error)}{unit}.",
    )


def _column(text: str, length: str, asked: Asked) -> int:
    try:
        columns = parse_lengths(length.strip(), asked.trained)
    except (UsageError, RecipeError) as problem:
        raise UsageError(f"--fail-if {text!r}: {problem}") from None
    if len(columns) != 1:
        raise UsageError(f"--fail-if {text!r} has several lengths; give --fail-if once for each")
    return columns[0]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _cell(condition: Condition, row: str, result: Result) -> Cell:
    measured = any(cell.measure == condition.measure for cell in result.cells)
    name = headline(result, condition.measure) if measured else ""
    cell = result.cell(row, condition.measure, name, condition.column)
    if cell is None:
        raise _unknown(condition, f"{row} has no {condition.measure} at {condition.column:,} tokens")
    return cell


def _unknown(condition: Condition, reason: str) -> RopeconvError:
    return RopeconvError(f"--fail-if {condition.text!r} cannot be judged: {reason}; see the table for what did run")
