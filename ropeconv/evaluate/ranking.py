"""Advice sorted by what was measured: the rows of a result that are the advised methods."""

import math
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..bake.advice import CRITERION, Advice, FormatAdvice, advise, why_scaling_is_kept
from ..bake.start import inherit_mscale
from ..bake.warnings import cannot_gain
from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..inspection.inspection import Inspection, inspect_source
from ..inspection.support import UNREAD, by_runtime
from ..models.gguf import GgufSource
from ..models.source import Source
from ..options import Format
from ..rope.errors import RecipeError, RopeconvError
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.summary import SummaryTable, TableSummary
from ..runtimes.runtime import GOOD
from .cases import EvaluationSizes, in_trained, metric_of, parse_lengths
from .measures.lm_eval import LM_EVAL
from .measures.measure import REGISTRY
from .result import (
    FEWEST,
    GROWTH,
    POSITION,
    Cell,
    Result,
    RowResult,
    headline,
    margin,
    price_and_reach,
    read_result,
)


@dataclass(frozen=True)
class Ranking:
    """Advice sorted by measured loss.

    methods: those that were measured, by their loss, then the others in their own order. measured:
    the row of the result, and its loss, by the name of the method. column: the length whose loss
    counts. result: of the evaluation.
    """

    methods: list[Advice]
    measured: dict[str, tuple[RowResult, Cell]]
    column: int
    result: Result

    def cells(self, advice: Advice) -> tuple[str, ...]:
        """Cells for a table: the loss, the price, and the length to which it holds."""
        row, cell = self.measured.get(advice.method.name, (None, None))
        if row is None or cell is None:
            return "-", "-", "-"
        price, reach = price_and_reach(row, self.result)
        return f"{cell.value:.3f}", price.text, reach.text

    def to_dict(self, advice: Advice) -> JsonObject | None:
        """The measurement of a method, as JSON-ready data; None without one."""
        row, cell = self.measured.get(advice.method.name, (None, None))
        if row is None or cell is None:
            return None
        return {
            "row": row.name,
            "length": cell.column,
            "loss": cell.value,
            "error": cell.error,
            "difference": cell.difference,
            "difference_error": cell.difference_error,
            "price": row.price,
            "price_error": row.price_error,
            "holds_to": row.holds_to,
        }


def rank(
    methods: Sequence[Advice], result: Result, inspection: Inspection, context: int
) -> Ranking:
    """Sort advice by what was measured.

    Args:
        methods: Advice in its own order.
        result: The result of an evaluation of the same model.
        inspection: The model.
        context: The wanted context in tokens; the longest measured length within it counts.

    Raises:
        UsageError: The result is of a model with another trained context, or has no growth.
    """
    spec = inspection.first_spec
    trained = (spec.unscaled() if spec.scaled else spec).original_context
    if result.trained != trained:
        raise UsageError(
            f"the evaluation is of a model trained for {result.trained:,} tokens, and this one was"
            f" for {trained:,}; run `ropeconv eval` on it"
        )
    columns = sorted({cell.column for cell in result.cells if cell.measure == GROWTH})
    if not columns:
        raise UsageError("the evaluation has no growth; run `ropeconv eval` with --measure growth")
    column = max((length for length in columns if length <= context), default=columns[0])

    measured: dict[str, tuple[RowResult, Cell]] = {}
    for row in result.rows:
        schedule = _schedule(row, inspection)
        cell = result.cell(row.name, GROWTH, "loss", column)
        if schedule is None or cell is None:
            continue
        for advice in methods:
            if _compute_the_same(schedule, advice.schedule):
                measured[advice.method.name] = (row, cell)

    def place(advice: Advice) -> tuple[bool, float]:
        _, cell = measured.get(advice.method.name, (None, None))
        return not advice.writable, math.inf if cell is None else cell.value

    return Ranking(sorted(methods, key=place), measured, column, result)


def _schedule(row: RowResult, inspection: Inspection) -> Schedule | None:
    """The schedule of a row; None for the unchanged model, and where this one cannot have it."""
    if row.recipe is None:
        return None
    try:
        recipe = inherit_mscale(Recipe.from_dict(row.recipe), inspection)
        basis = inspection.basis(recipe)
        return recipe.schedule(recipe.start(basis), basis)
    except RecipeError:
        return None


def _compute_the_same(schedule: Schedule, other: Schedule) -> bool:
    """Whether two schedules compute the same, whatever context they declare."""
    if len(schedule.inv_freq) != len(other.inv_freq):
        return False
    if not np.allclose(schedule.inv_freq, other.inv_freq, rtol=1e-9, atol=0):
        return False
    if not np.isclose(schedule.attention_factor, other.attention_factor, rtol=1e-9):
        return False
    if schedule.log_n != other.log_n:
        return False
    return (schedule.short_inv_freq is None) == (other.short_inv_freq is None)


@dataclass(frozen=True)
class RankedMethods(TableSummary):
    """Advice on a model: the methods that reach a length, the best first."""

    inspection: Inspection
    """The model."""

    context: int
    """The wanted length in tokens."""

    methods: list[Advice]
    """A row for each method, the best first."""

    passed_over: dict[str, str]
    """The reason, by name, for each method that does not fit."""

    criterion: str = CRITERION
    """By what the methods are sorted, in words."""

    ranking: Ranking | None = None
    """The ranking by what was measured; None without an evaluation."""

    note: str = ""
    """A sentence about that evaluation, or empty."""

    record_keys: ClassVar[tuple[str, ...]] = (
        "method",
        "flags",
        "works_untuned",
        "writable",
        "basis",
        "recommended",
        "score",
        "attention_factor",
        "effective_length",
        "outside",
        "loss",
        "command",
    )

    @property
    def best(self) -> Advice | None:
        """The method that is recommended first; None where none can be written."""
        return next((row for row in self.methods if row.writable), None)

    @property
    def sentence(self) -> str:
        """The recommendation in words."""
        best = self.best
        if best is None:
            return f"No method that can be written reaches {self.context:,} tokens."
        return f"The best is {best.sentence}"

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        best = self.best
        untuned = self.untuned
        skipped = [f"{name}: {reason}" for name, reason in self.passed_over.items()]
        return {
            "sentence": self.sentence,
            "source": self.source,
            "context": f"{self.inspection.context:,} -> {self.context:,} tokens",
            "best": best.command if best else "",
            "untuned": untuned.command if untuned and untuned is not best else "",
            "training": self.training,
            "useless": self.useless,
            "note": self.note,
            "passed_over": "\n".join(skipped),
        }

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats for which some method has verdicts of runtimes."""
        if not self.methods:
            return ()
        first = self.methods[0].writings
        return tuple(
            name for name in first if any(row.writings[name].verdicts for row in self.methods)
        )

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each method."""
        formats = self.formats
        measured = ("loss", "price", "holds to") if self.ranking else ()
        titles = ("runtimes",) if len(formats) == 1 else formats
        columns = ("method", *measured, "without training", *titles)
        rows = [self._cells(row, formats) for row in self.methods]
        return [SummaryTable("methods", (*columns, "evidence", "effective", "outside"), rows)]

    def _cells(self, row: Advice, formats: Sequence[str]) -> tuple[str, ...]:
        """The cells of a method for people."""
        measured = self.ranking.cells(row) if self.ranking else ()
        untuned = "yes" if row.works_untuned else "no"
        supported = [_count_supporting(row.writings[name]) for name in formats]
        rotating = 2 * (len(row.schedule.inv_freq) - row.profile.not_rotating)
        outside = f"{row.profile.outside} of {rotating}"
        effective = _describe_effective_length(row)
        return (row.flags, *measured, untuned, *supported, row.basis, effective, outside)

    def records(self) -> list[JsonObject]:
        """Return a row for each method; loss is None where it was not measured."""
        rows = []
        for row in self.methods:
            measured = self.ranking.to_dict(row) if self.ranking else None
            rows.append(
                {
                    "method": row.method.name,
                    "flags": row.flags,
                    "works_untuned": row.works_untuned,
                    "writable": row.writable,
                    "basis": row.basis,
                    "recommended": row.recommended or None,
                    "score": row.standing.score if row.standing.signs else None,
                    "attention_factor": row.schedule.attention_factor,
                    "effective_length": row.profile.reach.effective_length,
                    "outside": row.profile.outside,
                    "loss": measured["loss"] if measured else None,
                    "command": row.command,
                }
            )
        return rows

    @property
    def source(self) -> str:
        """The model as the user named it."""
        return self.inspection.source.reference

    @property
    def useless(self) -> str:
        """Why the model cannot gain from the length, or empty."""
        return cannot_gain(self.inspection.spec, self.context)

    @property
    def untuned(self) -> Advice | None:
        """The first method that is known to work without fine-tuning; None where there is none."""
        return next((row for row in self.methods if row.works_untuned and row.writable), None)

    @property
    def training(self) -> str:
        """A sentence about a model that was trained with its scaling, or for dual chunk attention;
        empty for others.
        """
        spec = self.inspection.spec
        trained = why_scaling_is_kept(self.inspection)
        if trained:
            return f"{trained}, so the methods keep the scaling (--on-top)."
        if any(problem.code == "dual-chunk" for problem in self.inspection.problems):
            return (
                f"the model reaches {spec.context:,} tokens by dual chunk attention over"
                f" {spec.original_context:,} trained ones, for which no method was measured."
                " Runtimes use it in place of a method, ignore it or fail: see `ropeconv inspect`."
            )
        return ""

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        cache = self.inspection.kv_cache
        ranking = self.ranking
        return {
            "source": self.source,
            "sorted_by": self.criterion,
            "advice": [
                row.to_dict() | ({"measured": ranking.to_dict(row)} if ranking else {})
                for row in self.methods
            ],
            "passed_over": self.passed_over,
            "kv_cache": (
                cache.document(self.context, self.inspection.spec.context).to_dict()
                if cache
                else None
            ),
            "warnings": [note for note in (self.useless, self.training) if note],
        }


def _describe_effective_length(row: Advice) -> str:
    """The effective length of a method for people, in tokens."""
    at = row.profile.reach
    windowed = not at.count and at.length < row.schedule.context  # no layer sees further
    if at.automatic or windowed:
        return "any"
    if at.effective_length is None:
        return f"{at.searched - 1:,}+"
    return f"{at.effective_length:,}"


def _count_supporting(writing: FormatAdvice) -> str:
    """How many runtimes support an output in their newest version, of those that can load the
    model.
    """
    if not writing.verdicts:
        return "-"
    newest = [rows[-1].status for rows in by_runtime(writing.verdicts).values()]
    loading = [status for status in newest if status not in UNREAD]
    return f"{sum(status in GOOD for status in loading)} of {len(loading)}"


def advised(
    source: Source | GgufSource,
    context: int,
    measured: Path | None = None,
    outputs: Sequence[Format] | None = None,
) -> RankedMethods:
    """Advice on a model.

    source: the model. context: in tokens. measured: a result of `ropeconv eval` to sort by, None
    without one. outputs: formats that are planned, as for `advise`. Raises as that, `read_result`
    and `rank` do.
    """
    inspection = inspect_source(source)
    methods, passed_over = advise(source, context, outputs, inspection)
    if measured is None:
        return RankedMethods(inspection, context, methods, passed_over)
    result = read_result(measured)
    reference = source.reference
    ranking = rank(methods, result, inspection, context)
    criterion = (
        f"the loss at {ranking.column:,} tokens in {measured}, then methods without one:"
        f" {CRITERION}"
    )
    other = Path(result.source).name != Path(reference).name
    note = (
        f"{measured} is an evaluation of {result.source}, and this is {reference}." if other else ""
    )
    return RankedMethods(
        inspection, context, ranking.methods, passed_over, criterion, ranking, note
    )


PATTERN = re.compile(r"(?P<left>[^<>]+)(?P<sign>[<>])(?P<right>[^<>=@][^<>@]*)@(?P<length>[^<>@]+)")
EXAMPLE = "write it like 'yarn:4 > base @2T' or 'passkey yarn:4 < 0.9 @2T'"


@dataclass(frozen=True)
class Condition:
    """A comparison of a row with another one, or with a number.

    text: as the user wrote it. measure: of which the headline is compared. left: name of a row.
    above: whether it must be more, else less. right: name of a row, or a number. length: as for
    --lengths.
    """

    text: str
    measure: str
    left: str
    above: bool
    right: str | float
    length: str

    def check(
        self, rows: Collection[str], measures: Collection[str], sizes: EvaluationSizes
    ) -> None:
        """Raises UsageError where an evaluation will not have the numbers.

        rows, measures: names of those that run. sizes: of the evaluation.
        """
        if self.measure not in measures:
            raise UsageError(f"--fail-if {self.text!r} needs {self.measure}; add it to --measure")
        for name in (self.left, self.right):
            if isinstance(name, str) and name not in rows:
                raise UsageError(
                    f"--fail-if {self.text!r} names {name!r}; the rows are {', '.join(rows)}"
                )
        column = self.column(sizes.trained)
        if self.measure != POSITION and column not in sizes.lengths:
            raise UsageError(
                f"--fail-if {self.text!r} needs {column:,} tokens; add them to --lengths"
            )

    def column(self, trained: int) -> int:
        """The length in tokens. trained: the trained context. Raises UsageError where it is
        none.
        """
        try:
            columns = parse_lengths(self.length, trained)
        except (UsageError, RecipeError) as problem:
            raise UsageError(f"--fail-if {self.text!r}: {problem}") from None
        if len(columns) != 1:
            raise UsageError(
                f"--fail-if {self.text!r} has several lengths; give --fail-if once for each"
            )
        return columns[0]

    def judge(self, result: Result) -> tuple[bool, str]:
        """Whether it is significantly true, and the numbers in a sentence.

        Rows of which neither is the first are compared by their differences to it, with the sum of
        both margins, which the margin of a paired difference never exceeds. Raises RopeconvError
        where numbers that it needs are missing.
        """
        left = self._cell(self.left, result)
        if isinstance(self.right, float):
            apart = left.value - self.right
            error = left.error
            limit = margin(left.error, left.clusters)
        else:
            right = self._cell(self.right, result)
            apart = (left.difference or 0.0) - (right.difference or 0.0)
            compared = [cell for cell in (left, right) if cell.difference is not None]
            error = sum(cell.difference_error or 0.0 for cell in compared)
            limits = [cell.margin for cell in compared]
            limit = None if None in limits else sum(limit for limit in limits if limit is not None)
        if error is None or limit is None:
            raise self._unknown(f"a test needs at least {FEWEST} windows; increase --windows")
        met = (apart > 0) == self.above and abs(apart) > limit

        metric = metric_of(left.metric)
        shown = "true" if met else "not shown"
        place = f"{self.measure} at {in_trained(left.column, result.trained)}"
        difference = f"{metric.difference(apart)} ± {metric.error(error)}"
        if metric.unit:
            difference += f" {metric.unit}"
        return met, f"{self.text} is {shown}: {place}, the difference is {difference}."

    def _cell(self, row: str, result: Result) -> Cell:
        """The headline of a row at the length of the condition."""
        column = self.column(result.trained)
        cell = None
        if any(cell.measure == self.measure for cell in result.cells):
            cell = result.cell(row, self.measure, headline(result, self.measure), column)
        if cell is None:
            raise self._unknown(f"{row} has no {self.measure} at {column:,} tokens")
        return cell

    def _unknown(self, reason: str) -> RopeconvError:
        return RopeconvError(
            f"--fail-if {self.text!r} cannot be judged: {reason}; see the table for what did run"
        )


def parse_condition(text: str) -> Condition:
    """`[MEASURE] ROW < ROW @LENGTH`, or with > and with a number, as a condition. Raises UsageError
    for other text.
    """
    match = PATTERN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--fail-if {text!r} is not a condition; {EXAMPLE}")
    left = match["left"].strip()
    right = match["right"].strip()
    measure = GROWTH
    first, _, rest = left.partition(" ")
    if rest and (first in REGISTRY or first.startswith(LM_EVAL)):
        left = rest.strip()
        measure = first
    compared: str | float = right
    with suppress(ValueError):
        compared = float(right) if math.isfinite(float(right)) else right
    return Condition(text, measure, left, match["sign"] == ">", compared, match["length"].strip())
