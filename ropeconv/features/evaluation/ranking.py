"""Compare rows of a result: to sort advice by what was measured, and to judge --fail-if.

`rank_methods` sorts advice by the rows that are the advised methods. `parse_condition` reads a
condition of --fail-if, and `Condition.judge` says whether it holds.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from ropeconv.bake.advice import CRITERION, Advice, MeasuredMethod
from ropeconv.bake.evidence import BAR, MOST_LOST, Study, Untuned, trained_context
from ropeconv.bake.fine_tuning import training_by_measurement
from ropeconv.bake.items import LM_EVAL, RecordItem, compare_rows
from ropeconv.bake.proof import FEWEST, Proof, judge, judge_share, sample_of
from ropeconv.bake.start import complete_recipe
from ropeconv.bake.studies import Group, study_of_items
from ropeconv.errors import UsageError
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.inspection import Inspection
from ropeconv.inspection.receipts.metrics import GROWTH, metric_of
from ropeconv.inspection.receipts.receipt import FineTuningRecord
from ropeconv.rope.errors import RecipeError, RopeconvError
from ropeconv.rope.recipe import Recipe, recipe_text
from ropeconv.rope.schedule import Schedule
from ropeconv.verbs.rows import BASE

from .cases import EvaluationSizes, in_trained, parse_lengths
from .measures.measure import REGISTRY
from .result import (
    POSITION,
    SIGNIFICANT,
    Cell,
    Result,
    RowResult,
    main_metric,
    price_and_reach,
    read_result,
    record_items,
)


@dataclass(frozen=True)
class Ranking:
    """Advice sorted by measured loss."""

    methods: list[Advice]
    """Those that were measured, by their loss, then the others in their own order."""

    measured: dict[str, tuple[RowResult, Cell]]
    """By the name of a method: its row in the result, and its loss."""

    column: int
    """The length in tokens whose loss counts."""

    result: Result
    """The evaluation."""

    judged: frozenset[str] = frozenset()
    """The names of the methods of which the result says whether they work without training."""

    why_not_judged: str = ""
    """Why the result does not say so of all measured methods, in words; empty where it does."""

    criterion: str = CRITERION
    """By what the methods are sorted, in words."""

    note: str = ""
    """A sentence about an evaluation of a model with another name, or empty."""

    columns: ClassVar[tuple[str, ...]] = ("loss", "price", "holds to", "minus base")
    """The titles of `cells`."""

    def cells(self, advice: Advice) -> tuple[str, ...]:
        """Return cells for a table, in the order of `columns`."""
        if advice.method.name not in self.measured:
            return ("-",) * len(self.columns)
        row, cell = self.measured[advice.method.name]
        return self._cells(row, cell)

    def base_cells(self) -> tuple[str, ...] | None:
        """Return the cells of the unchanged model; None where it has no line of its own."""
        if any(row.name == BASE for row, _cell in self.measured.values()):
            return None
        cell = self.result.cell(BASE, GROWTH, "loss", self.column)
        for row in self.result.rows:
            if row.name == BASE and cell is not None:
                return self._cells(row, cell)
        return None

    def judges(self, advice: Advice) -> bool:
        """Whether the result says if a method works without training."""
        return advice.method.name in self.judged

    def sentences(self) -> list[str]:
        """Return what belongs below the table: the meaning of the marks, and what is not decided.

        Which differences are decided is the rule of `ropeconv.bake.proof`.
        """
        first = self.methods[0]
        if first.method.name not in self.measured:
            return []
        sentences = [
            f"Losses at {self.column:,} tokens; {SIGNIFICANT}: differs from base by the rule of"
            " docs/evaluating.md."
        ]
        not_decided = []
        for advice in self.methods[1:]:
            if self._differs_from_first(advice) is False:
                not_decided.append(advice.flags)
        if not_decided:
            sentences.append(
                f"Their order is by the mean only: {', '.join(not_decided)} and {first.flags} are"
                " not decided by that rule."
            )
        if self.why_not_judged:
            sentences.append(
                "Whether a method works without training is from other studies where they are in"
                f" parentheses, since {self.why_not_judged}."
            )
        return sentences

    def _cells(self, row: RowResult, cell: Cell) -> tuple[str, ...]:
        """The cells of a row of the result."""
        price, reach = price_and_reach(row, self.result)
        difference = "-"
        proof = self._minus(row.name, BASE)
        if proof is not None and row.name != BASE:
            metric = metric_of("loss")
            mark = SIGNIFICANT if proof.decided else ""
            difference = f"{metric.difference(proof.difference)}{mark}"
            if proof.error is not None:
                difference += f" ±{metric.error(proof.error)}"
        return metric_of("loss").value(cell.value), price.text, reach.text, difference

    def _minus(self, row: str, other: str) -> Proof | None:
        """The loss of a row minus that of another one; None where they cannot be paired."""
        return compare_rows(self.result.items, row, other, self.column, GROWTH, "loss")

    def _differs_from_first(self, advice: Advice) -> bool | None:
        """Whether the loss of a method differs from that of the first one by the rule of proof.

        None for the first method, for one without a loss, and where the result has only means.
        """
        first = self.methods[0].method.name
        name = advice.method.name
        if name == first or name not in self.measured or not self.result.items:
            return None
        row, _cell = self.measured[name]
        first_row, _first_cell = self.measured[first]
        proof = self._minus(row.name, first_row.name)
        return proof is not None and proof.decided

    def to_dict(self, advice: Advice) -> JsonObject | None:
        """Return the measured losses of a method as JSON-ready data; None if it was not measured.

        `price` is the loss at the trained length minus the loss of the first row, in nats per
        token. `holds_to` is the longest length at which the loss is not significantly higher than
        the lowest one.

        Args:
            advice: The method, as `ropeconv advise` lists it.
        """
        if advice.method.name not in self.measured:
            return None
        row, cell = self.measured[advice.method.name]
        against_base = self._minus(row.name, BASE)
        return {
            "row": row.name,
            "length": cell.column,  # the columns of a table of losses are lengths
            "loss": cell.value,
            "error": cell.error,
            "difference": cell.difference,
            "difference_error": cell.difference_error,
            "price": row.price,
            "price_error": row.price_error,
            "holds_to": row.holds_to,
            # the same loss minus that of the unchanged model, and what the rule of proof decides
            "minus_base": against_base.difference if against_base else None,
            "minus_base_error": against_base.error if against_base else None,
            "differs_from_base": against_base.decided if against_base else None,
            "differs_from_first": self._differs_from_first(advice),
            # whether `works_untuned` and `without_training` follow from this result
            "judges_training": self.judges(advice),
        }


def rank_methods(
    methods: Sequence[Advice], measured: Path, inspection: Inspection, context: int
) -> Ranking:
    """Sort advice by a result of `ropeconv eval -o`.

    Args:
        methods: Advice in its own order.
        measured: The file of the result.
        inspection: The model, inspected.
        context: The wanted context in tokens.

    Raises:
        BadSource: For a file that is not a result.
        UsageError: As `rank` does.
    """
    result = read_result(measured)
    ranking = rank(methods, result, inspection, context, str(measured))
    criterion = (
        f"the loss at {ranking.column:,} tokens in {measured}, then methods without one:"
        f" {CRITERION}"
    )
    reference = inspection.source.reference
    note = ""
    if Path(result.source).name != Path(reference).name:
        note = f"{measured} is an evaluation of {result.source}, and this is {reference}."
    return replace(ranking, criterion=criterion, note=note)


def rank(
    methods: Sequence[Advice],
    result: Result,
    inspection: Inspection,
    context: int,
    file: str = "the evaluation",
) -> Ranking:
    """Sort advice by what was measured.

    Args:
        methods: Advice in its own order.
        result: The result of an evaluation of the same model.
        inspection: The model, inspected.
        context: The wanted context in tokens; the longest measured length within it counts.
        file: The name of the result, for messages.

    Raises:
        UsageError: The result is of a model with another trained context, has no growth, or has
            none of the methods.
    """
    # The result may be of another model. Its trained context is the cheapest sign of that.
    trained = trained_context(inspection)
    if result.trained != trained:
        raise UsageError(
            f"the evaluation is of a model trained for {result.trained:,} tokens, and this one was"
            f" for {trained:,}; run `ropeconv eval` on it"
        )

    # the longest measured length within the context, or the shortest one if all are longer
    lengths = sorted({cell.column for cell in result.cells if cell.measure == GROWTH})
    if not lengths:
        raise UsageError("the evaluation has no growth; run `ropeconv eval` with --measure growth")
    within = [length for length in lengths if length <= context]
    column = within[-1] if within else lengths[0]

    # A row belongs to the advice that computes the same frequencies. Names differ: the row
    # "yarn:4" and the advice "yarn" for four times the context are one schedule.
    measured: dict[str, tuple[RowResult, Cell]] = {}
    for row in result.rows:
        schedule = _schedule_of(row, inspection)
        cell = result.cell(row.name, GROWTH, "loss", column)
        if schedule is None or cell is None:
            continue
        for advice in methods:
            if _compute_the_same(schedule, advice.schedule):
                measured[advice.method.name] = (row, cell)

    if not measured:
        rows = ", ".join(row.name for row in result.rows)
        wanted = f"{BASE},{recipe_text(methods[0].recipe)}" if methods else BASE
        raise UsageError(
            f"no row of {file} ({rows}) is a method for {context:,} tokens; run `ropeconv eval`"
            f" with --methods {wanted}"
        )

    # whether methods work without training, where the result has what the bar needs
    study = _study_of(measured, methods, result, file)
    why_not = _why_nothing_is_judged(study, result, column, context)
    ranked = list(methods)
    judged = set()
    if study is not None and not why_not:
        for place, advice in enumerate(methods):
            own = _judge(advice, study, context)
            if own is not None:
                ranked[place] = own
                judged.add(advice.method.name)
    # without answers, the bar is missed by a loss above it, and a smaller one says too little
    if not why_not and measured.keys() - judged:
        why_not = (
            "the result has no answers at this length to questions of which base finds half at its"
            " trained length (--measure growth,passkey)"
        )

    def sort_key(advice: Advice) -> tuple[bool, float]:
        """Return a key that sorts writable methods first, then by loss; inf without a loss."""
        loss = math.inf
        if advice.method.name in measured:
            _, cell = measured[advice.method.name]
            loss = cell.value
        return not advice.writable, loss

    return Ranking(
        methods=sorted(ranked, key=sort_key),
        measured=measured,
        column=column,
        result=result,
        judged=frozenset(judged),
        why_not_judged=why_not,
    )


def _study_of(
    measured: Mapping[str, tuple[RowResult, Cell]],
    methods: Sequence[Advice],
    result: Result,
    file: str,
) -> Study | None:
    """Return the numbers of a result in the form of a published study.

    Args:
        measured: By the name of a method, its row in the result and its loss.
        methods: Advice on the methods.
        result: The evaluation.
        file: Its name.

    Returns:
        None for a result without single numbers, or without the loss of the unchanged model.
    """
    if not result.items:
        return None
    items_by_row: dict[str, list[RecordItem]] = {}
    for item in record_items(result):
        items_by_row.setdefault(item.row, []).append(item)
    items = list(items_by_row.get(BASE, ()))

    # a row counts under the name of its method, and the lengths from the trained one of the advice,
    # which for a model with a trained scaling is that of the scaling
    for name, (row, _cell) in measured.items():
        for item in items_by_row.get(row.name, ()):
            items.append(msgspec.structs.replace(item, method=name))
    trained = next(
        advice.fine_tuning.trained for advice in methods if advice.method.name in measured
    )
    items = [msgspec.structs.replace(item, trained=trained) for item in items]
    _row, cell = next(iter(measured.values()))
    group = Group(Path(result.source).name, cell.column / trained, on_top="")
    return study_of_items(group, items, file) if items else None


def _why_nothing_is_judged(study: Study | None, result: Result, column: int, context: int) -> str:
    """Return why a result does not say whether methods work without training; empty if it does.

    Args:
        study: The numbers of the result as a study.
        result: The evaluation.
        column: The length in tokens whose losses count.
        context: The wanted context in tokens.
    """
    if not result.items:
        return "the result has no single numbers"
    if study is None or BASE not in study.lost:
        return "the result lacks the loss of base at this length or at its trained length"
    if not study.reaches(context / study.trained):
        return f"the result ends at {column:,} tokens"
    if study.hardly_loses_without_method:
        return (
            f"the loss of base is {study.lost[BASE]:+z.2f} nats at this length, beside that at its"
            f" trained length: within the bar of {MOST_LOST:g}, so it judges no method"
        )
    return ""


def _judge(advice: Advice, study: Study, context: int) -> Advice | None:
    """Return advice with the bar as the user's own result meets it; None where it does not say.

    Args:
        advice: The advice by published studies.
        study: The result as a study.
        context: The wanted context in tokens.
    """
    name = advice.method.name
    result = study.compare_with_bar(name)
    if result is None:
        return None
    numbers = f"in {study.source}, {study.describe_result(name)}; {BAR}"
    level, reason = training_by_measurement(Untuned(result, numbers, study.finds_some(name)))

    # what the user measured replaces studies of other models and the word of the publisher
    return replace(
        advice,
        fine_tuning=FineTuningRecord(
            level=level,
            factor=advice.fine_tuning.factor,
            trained=advice.fine_tuning.trained,
            reason=reason,
        ),
        measured=MeasuredMethod(study, name, context / study.trained),
        weak=None,
        recommended="",
    )


def _schedule_of(row: RowResult, inspection: Inspection) -> Schedule | None:
    """Return the frequencies and factors that the method of a row gives a model.

    Args:
        row: A row of an evaluation, with its method as a recipe.
        inspection: The model.

    Returns:
        None for an output by its own name, which has no recipe, and for a method that the model
        cannot have.
    """
    # the unchanged model, which --as-is keeps
    if row.recipe is None:
        return inspection.spec.current() if row.name == BASE else None
    try:
        recipe = complete_recipe(Recipe.from_dict(row.recipe), inspection)
        return inspection.schedule_of(recipe)
    except RecipeError:
        return None


def _compute_the_same(schedule: Schedule, other: Schedule) -> bool:
    """Return whether two schedules give a model the same outputs beyond its trained context.

    A schedule has the frequencies and factors of a RoPE. Its declared context is not compared, nor
    is `softmax_scale`, which follows from YaRN's factor and `mscale_all_dim` of the model.
    """
    if len(schedule.inv_freq) != len(other.inv_freq):
        return False
    if not np.allclose(schedule.inv_freq, other.inv_freq, rtol=1e-9, atol=0):
        return False
    if not np.isclose(schedule.attention_factor, other.attention_factor, rtol=1e-9):
        return False
    if schedule.log_n != other.log_n:  # queries scaled by the logarithm of the position
        return False

    # LongRoPE has a second list of frequencies, for sequences within the trained context. Both
    # schedules must have one, or neither, but its numbers are not compared.
    has_two_lists = schedule.short_inv_freq is not None
    other_has_two_lists = other.short_inv_freq is not None
    return has_two_lists == other_has_two_lists


PATTERN = re.compile(r"(?P<left>[^<>]+)(?P<sign>[<>])(?P<right>[^<>=@][^<>@]*)@(?P<length>[^<>@]+)")
"""The text of --fail-if, with the measure still before the left row."""
EXAMPLE = "write it like 'yarn:4 > base @2T' or 'passkey yarn:4 < 0.9 @2T'"


@dataclass(frozen=True)
class Condition:
    """A comparison of a row with another one, or with a number, as --fail-if has it."""

    text: str
    """The condition as the user wrote it."""

    measure: str
    """The measure whose main metric is compared: the loss for growth."""

    left: str
    """The name of a row."""

    above: bool
    """Whether the left side must be more; otherwise it must be less."""

    right: str | float
    """The name of a row, or a number."""

    length: str
    """One length, as for --lengths: "65536", "64k", or "2T" for twice the trained length."""

    def check(
        self, rows: Collection[str], measures: Collection[str], sizes: EvaluationSizes
    ) -> None:
        """Refuse a condition, such as "yarn:4 > base @2T", whose numbers will not be measured.

        Args:
            rows: The names of the rows that run.
            measures: The names of the measures that run.
            sizes: The sizes of the evaluation.

        Raises:
            UsageError: A row, the measure or the length is not among them.
        """
        if self.measure not in measures:
            raise UsageError(f"--fail-if {self.text!r} needs {self.measure}; add it to --measure")
        if self.measure in REGISTRY and not REGISTRY[self.measure].is_tested:
            raise UsageError(
                f"--fail-if {self.text!r} cannot be judged, since {self.measure} has too few"
                " numbers for a test; compare the table"
            )
        for name in (self.left, self.right):
            if isinstance(name, str) and name not in rows:
                raise UsageError(
                    f"--fail-if {self.text!r} names {name!r}; the rows are {', '.join(rows)}"
                )
        is_number = isinstance(self.right, float)
        if is_number and self._is_of_shares and not 0 <= float(self.right) <= 1:
            raise UsageError(
                f"--fail-if {self.text!r} compares a share, which is from 0 to 1: write 0.9 for"
                " 90 %"
            )
        length = self.length_in_tokens(sizes.trained)
        if self.measure != POSITION and length not in sizes.lengths:
            raise UsageError(
                f"--fail-if {self.text!r} needs {length:,} tokens; add them to --lengths"
            )

    @property
    def _is_of_shares(self) -> bool:
        """Whether the measure counts right answers."""
        return self.measure in REGISTRY and metric_of(REGISTRY[self.measure].metrics[0]).share

    def length_in_tokens(self, trained: int) -> int:
        """Return the length of the condition in tokens: 65,536 for "2T" and 32,768 trained tokens.

        Args:
            trained: The trained context in tokens.

        Raises:
            UsageError: The length cannot be read, or is a list of several.
        """
        try:
            lengths = parse_lengths(self.length, trained)
        except (UsageError, RecipeError) as problem:
            raise UsageError(f"--fail-if {self.text!r}: {problem}") from None
        if len(lengths) != 1:
            raise UsageError(
                f"--fail-if {self.text!r} has several lengths; give --fail-if once for each"
            )
        return lengths[0]

    def judge(self, result: Result) -> tuple[bool, str]:
        """Return whether the condition is significantly true, and the numbers in a sentence.

        "yarn:4 > base @2T" is true where the number of yarn:4 is larger at twice the trained
        context, by more than chance.

        Raises:
            RopeconvError: Numbers that it needs are missing.
        """
        left = self._cell(self.left, result)
        if isinstance(self.right, float):
            # a row against a number, such as "yarn:4 < 0.9"
            compared = _compare_with_number(left, self.right, result)
        else:
            right = self._cell(self.right, result)
            compared = compare_rows(
                result.items, left.row, right.row, left.column, left.measure, left.metric
            )
        # the difference left - right, its standard error, and how large it must be to count
        if compared is None:
            raise self._unknown(f"{self.left} and {self.right} have read no sequence in common")
        if compared.error is None or compared.margin is None:
            raise self._unknown(
                f"a test needs at least {FEWEST} independent windows or texts; increase --windows"
            )

        # it holds where the difference has the right sign and is significant
        is_above = compared.difference > 0
        has_right_sign = is_above == self.above
        is_significant = compared.decided
        holds = has_right_sign and is_significant

        metric = metric_of(left.metric)
        numbers = f"{metric.difference(compared.difference)} ± {metric.error(compared.error)}"
        if metric.unit:
            numbers += f" {metric.unit}"
        place = f"{self.measure} at {in_trained(left.column, result.trained)}"
        verdict = "true" if holds else "not shown"
        return holds, f"{self.text} is {verdict}: {place}, the difference is {numbers}."

    def _cell(self, row: str, result: Result) -> Cell:
        """Return the cell of a row that the condition compares, such as the loss at 32k tokens.

        Args:
            row: The row, such as "yarn:4".
            result: The evaluation.

        Raises:
            RopeconvError: The evaluation does not have this cell.
        """
        length = self.length_in_tokens(result.trained)
        cell = None
        measures = {measured.measure for measured in result.cells}  # such as {"growth"}
        if self.measure in measures:
            metric = main_metric(result, self.measure)  # "loss" for "growth"
            cell = result.cell(row, self.measure, metric, length)
        if cell is None:
            raise self._unknown(f"{row} has no {self.measure} at {length:,} tokens")
        return cell

    def _unknown(self, reason: str) -> RopeconvError:
        return RopeconvError(
            f"--fail-if {self.text!r} cannot be judged: {reason}; see the table for what did run"
        )


def _compare_with_number(cell: Cell, number: float, result: Result) -> Proof | None:
    """Compare the single numbers that a cell is the mean of with a number; None without any."""
    items = []
    for item in result.items:
        place = (item.row, item.measure, item.metric, item.length)
        if place == (cell.row, cell.measure, cell.metric, cell.column):
            items.append(item)
    if not items:
        return None
    items.sort(key=lambda item: (item.text, item.window))
    if metric_of(cell.metric).share:
        return judge_share(sample_of(items), number)
    differences = [item.value - number for item in items]
    return judge(sample_of(items, differences))


def parse_condition(text: str) -> Condition:
    """Parse a condition such as "yarn:4 < base @32k" or "passkey yarn:4 > 0.9 @2T".

    The parts are [MEASURE] ROW < ROW-OR-NUMBER @LENGTH, where the sign may be < or >. The default
    measure is "growth", the loss at several lengths.

    Raises:
        UsageError: The text is not a condition.
    """
    match = PATTERN.fullmatch(text.strip())
    if match is None and "@" not in text:
        raise UsageError(f"--fail-if {text!r} is not a condition without a length, @2T; {EXAMPLE}")
    if match is None:
        raise UsageError(f"--fail-if {text!r} is not a condition; {EXAMPLE}")

    # "passkey yarn:4" is a measure and a row, "yarn:4" a row; names of rows may have spaces
    left = match["left"].strip()
    measure = GROWTH  # the default
    first_word, _, rest = left.partition(" ")
    is_task_of_lm_eval = first_word.startswith(LM_EVAL)
    is_measure = first_word in REGISTRY or is_task_of_lm_eval
    if rest and is_measure:
        left = rest.strip()
        measure = first_word

    return Condition(
        text=text,
        measure=measure,
        left=left,
        above=match["sign"] == ">",  # whether the left number must be above the right one
        right=_number_or_name(match["right"].strip()),
        length=match["length"].strip(),
    )


def _number_or_name(text: str) -> str | float:
    """Return the right side of a condition: a number, or the name of a row."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):  # a row may be called "inf" or "nan"
        return text
    return number
