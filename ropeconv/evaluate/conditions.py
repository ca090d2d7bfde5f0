"""Conditions of --fail-if, such as `yarn:4 > base @2T`: true only beyond three standard errors."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from ..errors import RecipeError, RopeconvError, UsageError
from .asked import Asked, in_trained, parse_lengths
from .measures import REGISTRY
from .measures.lm_eval import LM_EVAL
from .metric import metric_of
from .result import GROWTH, Cell, Result, decided
from .tables import POSITION, headline

PATTERN = re.compile(r"(?P<left>[^<>]+)(?P<sign>[<>])(?P<right>[^<>=@][^<>@]*)@(?P<length>[^<>@]+)")
EXAMPLE = "write it like 'yarn:4 > base @2T' or 'passkey yarn:4 < 0.9 @2T'"


@dataclass(frozen=True)
class Judged:
    """Whether a condition is true beyond three standard errors, and the numbers in a sentence."""

    met: bool
    sentence: str


@dataclass(frozen=True)
class Condition:
    """A comparison of a row with another one, or with a number.

    text: as the user wrote it. measure: of which the headline is compared. left: name of a row. above: whether it has
    to be more, else less. right: name of a row, or a number. length: as for --lengths.
    """

    text: str
    measure: str
    left: str
    above: bool
    right: str | float
    length: str

    def check(self, rows: Collection[str], measures: Collection[str], asked: Asked) -> None:
        """Raises UsageError where an evaluation will not have the numbers.

        rows, measures: names of those that run. asked: sizes.
        """
        if self.measure not in measures:
            raise UsageError(f"--fail-if {self.text!r} needs {self.measure}; add it to --measure")
        for name in (self.left, self.right):
            if isinstance(name, str) and name not in rows:
                raise UsageError(f"--fail-if {self.text!r} names {name!r}; the rows are {', '.join(rows)}")
        column = self.column(asked.trained)
        if self.measure != POSITION and column not in asked.lengths:
            raise UsageError(f"--fail-if {self.text!r} needs {column:,} tokens; add them to --lengths")

    def column(self, trained: int) -> int:
        """The length in tokens. trained: the trained context. Raises UsageError where it is none."""
        try:
            columns = parse_lengths(self.length, trained)
        except (UsageError, RecipeError) as problem:
            raise UsageError(f"--fail-if {self.text!r}: {problem}") from None
        if len(columns) != 1:
            raise UsageError(f"--fail-if {self.text!r} has several lengths; give --fail-if once for each")
        return columns[0]

    def judge(self, result: Result) -> Judged:
        """Whether it is true beyond three errors. Raises RopeconvError where numbers that it needs are missing.

        Rows of which neither is the first are compared by their differences to it, with the sum of both errors, which
        the error of a paired difference never exceeds.
        """
        left = self._cell(self.left, result)
        if isinstance(self.right, float):
            apart, error = left.value - self.right, left.error
        else:
            right = self._cell(self.right, result)
            apart = (left.difference or 0.0) - (right.difference or 0.0)
            known = [cell.difference_error for cell in (left, right) if cell.difference is not None]
            error = None if None in known else sum(one for one in known if one is not None)
        if error is None:
            raise self._unknown("a single window has no error")
        met, metric = (apart > 0) == self.above and decided(apart, error), metric_of(left.metric)
        unit = f" {metric.unit}" if metric.unit else ""
        place = f"{self.measure} at {in_trained(left.column, result.trained)}"
        return Judged(
            met,
            f"{self.text} is {'true' if met else 'not shown'}: {place}, the difference is "
            f"{metric.difference(apart)} ± {metric.error(error)}{unit}.",
        )

    def _cell(self, row: str, result: Result) -> Cell:
        column = self.column(result.trained)
        measured = any(cell.measure == self.measure for cell in result.cells)
        cell = result.cell(row, self.measure, headline(result, self.measure), column) if measured else None
        if cell is None:
            raise self._unknown(f"{row} has no {self.measure} at {column:,} tokens")
        return cell

    def _unknown(self, reason: str) -> RopeconvError:
        return RopeconvError(f"--fail-if {self.text!r} cannot be judged: {reason}; see the table for what did run")


def parse_condition(text: str) -> Condition:
    """`[MEASURE] ROW < ROW @LENGTH`, or with > and with a number, as a condition. Raises UsageError for other text."""
    found = PATTERN.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--fail-if {text!r} is no condition; {EXAMPLE}")
    left, right, measure = found["left"].strip(), found["right"].strip(), GROWTH
    first, _, rest = left.partition(" ")
    if rest and (first in REGISTRY or first.startswith(LM_EVAL)):
        left, measure = rest.strip(), first
    number = _number(right)
    return Condition(
        text, measure, left, found["sign"] == ">", right if number is None else number, found["length"].strip()
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
