"""The advice on a model as a whole: the methods that reach a length, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ..formats.jsontext import JsonObject
from ..inspection.inspection import Inspection, inspect_source
from ..inspection.support import UNREAD, by_runtime
from ..models.gguf import GgufSource
from ..models.source import Source
from ..options import Format
from ..rope.features import hook
from ..rope.summary import SummaryTable, TableSummary
from ..runtimes.runtime import GOOD
from .advice import (
    CRITERION,
    NOT_MEASURED,
    Advice,
    FormatAdvice,
    advise,
    why_scaling_is_kept,
)
from .evidence import Study
from .warnings import cannot_gain

MEASURED_COLUMNS = ("loss inside", "loss at length", "price", "facts found", "measured on")
"""The columns of the table for what was measured on another model."""


class MeasuredRanking(Protocol):
    """Advice sorted by measured loss, as the hook `rank_methods` returns it."""

    methods: list[Advice]
    """Those that were measured, by their loss, then the others in their own order."""

    criterion: str
    """By what they are sorted, in words."""

    note: str
    """A sentence about the evaluation, or empty."""

    def cells(self, advice: Advice) -> tuple[str, ...]:
        """Return its cells for a table: the loss, the price, and the length to which it holds."""

    def to_dict(self, advice: Advice) -> JsonObject | None:
        """Return the measurement of a method as JSON-ready data; None without one."""


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

    ranking: MeasuredRanking | None = None
    """The ranking by what was measured; None without an evaluation."""

    record_keys: ClassVar[tuple[str, ...]] = (
        "method",
        "flags",
        "works_untuned",
        "without_training",
        "writable",
        "basis",
        "recommended",
        "score",
        "measured_on",
        "loss_inside",
        "loss_beyond",
        "price",
        "retrieval",
        "retrieval_low",
        "retrieval_high",
        "attention_factor",
        "effective_length",
        "outside",
        "loss",
        "command",
    )

    @property
    def criterion(self) -> str:
        """By what the methods are sorted, in words."""
        return self.ranking.criterion if self.ranking else CRITERION

    @property
    def note(self) -> str:
        """A sentence about that evaluation, or empty."""
        return self.ranking.note if self.ranking else ""

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
        """Return the lines above the table of methods, by name; an empty line is not shown."""
        # the commands to run: for the best method, and if that needs fine-tuning, for the best
        # method that needs none
        best_command = ""
        if self.best is not None:
            best_command = self.best.command
        untuned_command = ""
        if self.untuned is not None and self.untuned is not self.best:
            untuned_command = self.untuned.command

        skipped = [f"{name}: {reason}" for name, reason in self.passed_over.items()]
        return {
            "sentence": self.sentence,
            "source": self.source,
            "context": f"{self.inspection.context:,} -> {self.context:,} tokens",
            "best": best_command,
            "untuned": untuned_command,
            # two warnings: what the training of the model means for methods, and that the layers of
            # the model cannot see the longer context
            "training": self.training,
            "useless": self.useless,
            # about the evaluation that the methods are sorted by
            "note": self.note,
            "passed_over": "\n".join(skipped),
        }

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats for which some method has verdicts of runtimes."""
        if not self.methods:
            return ()
        judged = []
        for name in self.methods[0].writings:  # every method has the same formats
            if any(row.writings[name].verdicts for row in self.methods):
                judged.append(name)
        return tuple(judged)

    @property
    def studies(self) -> list[Study]:
        """The studies whose numbers the table shows, each once, in the order of their rows."""
        studies: list[Study] = []
        for row in self.methods:
            if row.measured is not None and row.measured.study not in studies:
                studies.append(row.measured.study)
        return studies

    @property
    def has_several_samples(self) -> bool:
        """Whether a model was measured on two sets of texts, whose losses cannot be compared."""
        models = {study.short_model for study in self.studies}
        samples = {(study.short_model, study.texts) for study in self.studies}
        return len(samples) > len(models)

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each method."""
        # measured columns only with an evaluation, and the name of a format only beside another one
        formats = self.formats
        measured = ("loss", "price", "holds to") if self.ranking else ()
        titles = ("runtimes",) if len(formats) == 1 else formats
        columns = ("method", *(measured or MEASURED_COLUMNS), "without training", *titles)
        rows = [self._cells(row, formats) for row in self.methods]
        return [SummaryTable("methods", columns, rows)]

    def _cells(self, row: Advice, formats: Sequence[str]) -> tuple[str, ...]:
        """The cells of a method in the table that people read.

        Such as ("--yarn 4", "2.31", "2.48", "+0.02", "94 % (88-97)", "Qwen2.5-0.5B", "yes",
        "3 of 5"): its flag, what was measured, whether it works without training, and for each
        format how many runtimes support the output.
        """
        # from a result of the user's `eval`, else from the published studies
        if self.ranking:
            measured = self.ranking.cells(row)
        elif row.measured is not None:
            *numbers, model = row.measured.cells()
            if self.has_several_samples:
                model += f", {row.measured.study.texts} texts"
            measured = (*numbers, model)
        else:
            measured = NOT_MEASURED

        if not row.writable:
            untuned = "cannot be written"
        elif row.recommended:
            untuned = f"{row.without_training} ({row.basis})"
        else:
            untuned = row.without_training

        supported = [_count_supporting(row.writings[name]) for name in formats]
        return (row.flags, *measured, untuned, *supported)

    def records(self) -> list[JsonObject]:
        """Return a row for each method, for a table such as that of pandas.

        Numbers that were not measured are None. Losses are in nats per token.
        """
        rows = []
        for row in self.methods:
            # what the user's own evaluation has measured
            own_evaluation = self.ranking.to_dict(row) if self.ranking else None
            # The mean over other methods of 1 (better than that method) and -1 (worse). A method
            # that no study compares has no score; 0 would mean as good as the others.
            was_compared = bool(row.standing.signs)
            score = row.standing.score if was_compared else None
            # what a published study has measured
            numbers = row.measured.to_dict() if row.measured else {}
            rows.append(
                {
                    "method": row.method.name,
                    "flags": row.flags,
                    "works_untuned": row.works_untuned,
                    "without_training": row.without_training,
                    "writable": row.writable,
                    "basis": row.basis,
                    "recommended": row.recommended or None,
                    "score": score,
                    "measured_on": numbers.get("model"),
                    "loss_inside": numbers.get("loss_inside"),
                    "loss_beyond": numbers.get("loss_beyond"),
                    "price": numbers.get("price"),  # the loss within the trained length
                    "retrieval": numbers.get("retrieval"),  # hidden facts found, in percent
                    "retrieval_low": numbers.get("retrieval_low"),
                    "retrieval_high": numbers.get("retrieval_high"),
                    "attention_factor": row.schedule.attention_factor,
                    "effective_length": row.profile.reach.effective_length,
                    "outside": row.profile.outside,  # dimensions with angles new to the model
                    "loss": own_evaluation["loss"] if own_evaluation else None,
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
        """A sentence on what the training of the model means for the methods; or empty.

        There are four cases: the model was trained with a scaling; it reaches its length by dual
        chunk attention; it may have been trained with less context than it declares; or it surely
        was.
        """
        # 1. trained with a scaling, which methods keep
        spec = self.inspection.spec
        why_kept = why_scaling_is_kept(self.inspection)
        if why_kept:
            return f"{why_kept}, so the methods keep the scaling (--on-top)."

        # 2. dual chunk attention, as Qwen2.5-1M has
        codes = {problem.code for problem in self.inspection.problems}
        if "dual-chunk" in codes:
            return (
                f"the model reaches {spec.context:,} tokens by dual chunk attention over"
                f" {spec.original_context:,} trained ones, for which no method was measured."
                " Runtimes use it in place of a method, ignore it or fail: see `ropeconv inspect`."
            )

        # 3. maybe trained with less, as Qwen 2. The message of the problem is a part of a sentence:
        # "declares 131,072 tokens and may have been trained with 32,768 (...); if so, pass
        # --original-context 32768". Here it continues with "to the command below".
        for problem in self.inspection.problems:
            if problem.code == "trained":
                return f"the model {problem.message} to the command below."

        # 4. Surely trained with much less, by the table of families: Qwen2.5-1M without the key of
        # dual chunk attention. (Qwen 3 declares 40,960 tokens for 32,768 trained ones, which is
        # only a little more.)
        is_in_table = spec.original_context_source == "family"
        if is_in_table and spec.context > 2 * spec.original_context:
            return (
                f"the model declares {spec.context:,} tokens and was trained with"
                f" {spec.original_context:,}, over which factors count"
                f" ({spec.original_context_reference})."
            )
        return ""

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        advice = []
        for row in self.methods:
            document = row.to_dict()
            if self.ranking:
                document["measured"] = self.ranking.to_dict(row)
            advice.append(document)

        cache = self.inspection.kv_cache
        cache_document: JsonObject | None = None
        if cache:
            cache_document = cache.document(self.context, self.inspection.spec.context).to_dict()

        return {
            "source": self.source,
            "sorted_by": self.criterion,
            "advice": advice,
            "passed_over": self.passed_over,
            "kv_cache": cache_document,
            # that layers cannot see the longer context, and what the training means for methods
            "warnings": [note for note in (self.useless, self.training) if note],
        }


def _count_supporting(writing: FormatAdvice) -> str:
    """How many runtimes support an output in their newest version, of those that can load the
    model: `3 of 5`.
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
    runtimes: Sequence[str] = (),
) -> RankedMethods:
    """Return the methods with which a model reaches a length, compared and sorted.

    Args:
        source: The model.
        context: The wanted length in tokens.
        measured: A result of `ropeconv eval` to sort by; None without one.
        outputs: Formats that are planned; None for all that the model can have.
        runtimes: The runtimes that must compute an output, as `--runtime` names them.

    Raises:
        UsageError: For a result of another model, or one without losses by length.
        RopeconvError: As `advise` does, and for a result that cannot be read.
    """
    inspection = inspect_source(source)
    methods, passed_over = advise(source, context, outputs, inspection, runtimes)
    if measured is None:
        return RankedMethods(
            inspection=inspection, context=context, methods=methods, passed_over=passed_over
        )

    # the function of the feature for `eval`, a plugin of this package, which sorts the methods by
    # the losses in the result
    rank_methods = hook("rank_methods")
    ranking: MeasuredRanking = rank_methods(methods, measured, inspection, context)
    return RankedMethods(
        inspection=inspection,
        context=context,
        methods=ranking.methods,
        passed_over=passed_over,
        ranking=ranking,
    )
