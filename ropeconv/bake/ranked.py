"""The advice on a model as a whole: the methods that reach a length, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ..formats.jsontext import JsonObject
from ..inspection.inspection import Inspection, inspect_source
from ..models.gguf import GgufSource
from ..models.source import Source
from ..options import Format
from ..rope.features import hook
from ..rope.summary import SummaryTable, TableSummary
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

    columns: ClassVar[tuple[str, ...]]
    """The titles of the cells of a method."""

    def cells(self, advice: Advice) -> tuple[str, ...]:
        """Return the cells of a method for a table, one for each of `columns`."""

    def base_cells(self) -> tuple[str, ...] | None:
        """Return the cells of the unchanged model; None where it has no line of its own."""

    def judges(self, advice: Advice) -> bool:
        """Whether the evaluation says if a method works without training."""

    def sentences(self) -> list[str]:
        """Return the sentences below the table."""

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
        """Return the lines above the table of methods, by name. An empty line is not shown."""
        # the command for the best method
        best_command = ""
        if self.best is not None:
            best_command = self.best.command
        # the command for the best method without fine-tuning, if that is another method
        untuned_command = ""
        if self.untuned is not None and self.untuned is not self.best:
            untuned_command = self.untuned.command
        # the methods that do not fit the model, with reasons
        reasons = [f"{name}: {reason}" for name, reason in self.passed_over.items()]

        return {
            "sentence": self.sentence,
            "source": self.source,
            "context": f"{self.inspection.context:,} -> {self.context:,} tokens",
            "best": best_command,
            "untuned": untuned_command,
            # a warning on the training of the model, such as "was trained with 32,768 tokens"
            "training": self.training,
            # a warning that the layers of the model cannot see the longer context
            "useless": self.useless,
            # a sentence on the user's own evaluation, by which the methods are sorted
            "note": self.note,
            "passed_over": "\n".join(reasons),
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
        measured = self.ranking.columns if self.ranking else MEASURED_COLUMNS
        titles = ("runtimes",) if len(formats) == 1 else formats
        columns = ("method", *measured, "without training", *titles)
        rows = [self._cells(row, formats) for row in self.methods]
        base = self.ranking.base_cells() if self.ranking else None
        if base is not None:
            blank = ("-",) * (1 + len(titles))
            rows.append(("base", *base, *blank))
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
        elif self.ranking and row.measured is not None and not self.ranking.judges(row):
            # beside the user's own numbers, the model that this is from
            untuned = f"{row.without_training} ({row.measured.model})"
        else:
            untuned = row.without_training

        supported = [_count_supporting(row.writings[name]) for name in formats]
        return (row.flags, *measured, untuned, *supported)

    def records(self) -> list[JsonObject]:
        """Return a row for each method, for a pandas DataFrame.

        Numbers that were not measured are None. Losses are in nats per token.
        """
        rows = []
        for advice in self.methods:
            # the numbers of the user's own evaluation, and of a published study
            own_evaluation = self.ranking.to_dict(advice) if self.ranking else None
            numbers = advice.measured.to_dict() if advice.measured else {}

            # The mean of 1 for each method that this method is better than, and -1 for each that it
            # is worse than, by published studies (`standing`). None if no study compares it.
            was_compared = bool(advice.standing.signs)
            score = advice.standing.score if was_compared else None
            rows.append(
                {
                    "method": advice.method.name,
                    "flags": advice.flags,
                    # whether it works without training: True or False, and "yes", "no" or why
                    # nobody knows, such as "not measured"
                    "works_untuned": advice.works_untuned,
                    "without_training": advice.without_training,
                    # whether an output can be written
                    "writable": advice.writable,
                    # why it has its place in the list, such as "its publisher", with the source
                    "basis": advice.basis,
                    "recommended": advice.recommended or None,
                    "score": score,
                    # the study: losses at the trained and at the new length, the loss that the
                    # method adds at the trained length, and the hidden facts found, in percent
                    "measured_on": numbers.get("model"),
                    "loss_inside": numbers.get("loss_inside"),
                    "loss_beyond": numbers.get("loss_beyond"),
                    "price": numbers.get("price"),
                    "retrieval": numbers.get("retrieval"),
                    "retrieval_low": numbers.get("retrieval_low"),
                    "retrieval_high": numbers.get("retrieval_high"),
                    # the frequencies: `outside` counts dimensions with angles new to the model
                    "attention_factor": advice.schedule.attention_factor,
                    "effective_length": advice.profile.reach.effective_length,
                    "outside": advice.profile.outside,
                    # the user's own evaluation
                    "loss": own_evaluation["loss"] if own_evaluation else None,
                    "command": advice.command,
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
        """A warning on how the model was trained, where that matters for the choice of a method.

        It is empty for a model that was trained with the context that it declares.
        """
        # Llama 3.1: trained with a scaling, which methods keep
        spec = self.inspection.spec
        why_kept = why_scaling_is_kept(self.inspection)
        if why_kept:
            return f"{why_kept}, so the methods keep the scaling (--on-top)."

        # Qwen2.5-1M: reaches its length by dual chunk attention
        codes = {problem.code for problem in self.inspection.problems}
        if "dual-chunk" in codes:
            return (
                f"the model reaches {spec.context:,} tokens by dual chunk attention over"
                f" {spec.original_context:,} trained ones, for which no method was measured."
                " Runtimes use it in place of a method, ignore it or fail: see `ropeconv inspect`."
            )

        # Qwen 2: may have been trained with fewer tokens. The message of the problem is "declares
        # 131,072 tokens and may have been trained with 32,768 (...); if so, pass --original-context
        # 32768".
        for problem in self.inspection.problems:
            if problem.code == "trained":
                return f"the model {problem.message} to the command below."

        # Qwen2.5-1M without the key of dual chunk attention: trained with much fewer tokens, by the
        # table of families. (Qwen 3 declares 40,960 tokens and was trained with 32,768, which needs
        # no warning.)
        is_in_table = spec.original_context_source == "family"
        declares_much_more = spec.context > 2 * spec.original_context
        if is_in_table and declares_much_more:
            return (
                f"the model declares {spec.context:,} tokens and was trained with"
                f" {spec.original_context:,}, over which factors count"
                f" ({spec.original_context_reference})."
            )
        return ""

    def to_dict(self) -> JsonObject:
        """Return the methods, the memory of the KV cache and warnings as JSON-ready data."""
        methods = []
        for advice in self.methods:
            method = advice.to_dict()
            if self.ranking:  # the user's own evaluation, by which the methods are sorted
                method["measured"] = self.ranking.to_dict(advice)
            methods.append(method)

        # the memory of the KV cache at the wanted length and at the present length
        cache = self.inspection.kv_cache  # None where its size is not known
        cache_sizes: JsonObject | None = None
        if cache:
            present_length = self.inspection.spec.context
            cache_sizes = cache.document(self.context, present_length).to_dict()

        # that the layers cannot see the longer context, and how the model was trained
        warnings = [text for text in (self.useless, self.training) if text]

        return {
            "source": self.source,
            "sorted_by": self.criterion,
            "advice": methods,
            "passed_over": self.passed_over,  # why a method does not fit, by its name
            "kv_cache": cache_sizes,
            "warnings": warnings,
        }


def _count_supporting(writing: FormatAdvice) -> str:
    """How many runtimes support an output in their newest version, of those that can load the
    model: `3 of 5`.
    """
    if not writing.verdicts:
        return "-"
    return f"{writing.supporting} of {writing.loading}"


def advised(
    source: Source | GgufSource,
    context: int,
    measured: Path | None = None,
    outputs: Sequence[Format] | None = None,
    runtimes: Sequence[str] = (),
) -> RankedMethods:
    """Return the methods with which a model reaches a length, the best method first.

    Args:
        source: The model.
        context: The wanted length in tokens.
        measured: The path of a result of `ropeconv eval`, by whose losses the methods are sorted;
            None to sort by published studies.
        outputs: Formats that are planned; None for all that the model can have.
        runtimes: The runtimes that must compute an output, as `--runtime` names them.

    Raises:
        UsageError: For a result of another model, or one without losses by length.
        RopeconvError: As `advise` does, and for a result that cannot be read.
    """
    inspection = inspect_source(source)
    methods, reasons_by_method = advise(source, context, outputs, inspection, runtimes)
    ranking: MeasuredRanking | None = None
    if measured is not None:
        # a function of the plugin that has the command `eval`
        rank_methods = hook("rank_methods")
        ranking = rank_methods(methods, measured, inspection, context)
        methods = ranking.methods  # sorted by the losses in the result
    return RankedMethods(
        inspection=inspection,
        context=context,
        methods=methods,
        passed_over=reasons_by_method,  # methods that do not fit the model
        ranking=ranking,
    )
