"""Tuning: formulas, a search from the best one, and a test on held-out text.

`tune_model` does all of it, and `open_tuning` gives a `Tuning`, whose `run` has the steps.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ropeconv.bake.advice import why_scaling_is_kept
from ropeconv.bake.proof import FEWEST
from ropeconv.bake.start import nothing_to_extend, refuse_undeclared
from ropeconv.engines.engine import Progress
from ropeconv.engines.transformers.differentiable import check_gradient
from ropeconv.engines.transformers.load import advice_on_memory
from ropeconv.errors import UsageError
from ropeconv.formats.journal import Journal, default_path
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.texts import TextLike
from ropeconv.models.reference import names_gguf
from ropeconv.rope.errors import RopeconvError, counted
from ropeconv.rope.lengths import format_duration, format_tokens, parse_tokens
from ropeconv.rope.methods.method import positive
from ropeconv.rope.methods.vectors import AsIs
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.verbs.rows import BASE, Row

from ..cases import EvaluationSizes
from ..evaluation import over_budget
from ..options import TuneOptions
from ..runners.checkpoint import CheckpointRunner
from ..runners.opening import open_runner
from ..runners.runner import RunnerRequest
from ..texts import Texts, gather_texts, tokenize
from .result import FORMULAS, Candidate, Start, TuningResult, TuningRow, WindowMeasurement
from .scorer import TUNE, Passes, Price, Scorer, blocks, can_be_tested, rows, split, windows
from .search import STEPS_BETWEEN_CHECKS, WINDOWS_PER_STEP, Task, gradient, search

REPLACE = "--replace"
"""The option of `apply` for a recipe that starts from the unscaled RoPE of a scaled model."""


@dataclass(frozen=True)
class SearchSettings(TuneOptions):
    """The settings of a search as users write them; the fields are those of `TuneOptions`."""

    def check(self) -> None:
        """Refuse values with which no search can run.

        Raises:
            UsageError: A value is wrong.
            RecipeError: The context is out of bounds.
        """
        parse_tokens(self.context)
        for name in ("windows", "targets", "steps"):
            count = getattr(self, name)
            if count < 1:
                raise UsageError(f"--{name} is {count}; give a positive number")
        for name in ("inside", "needles", "regularise", "held_windows"):
            number = getattr(self, name)
            if math.isnan(number) or number < 0:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {number}; give 0 or more")

        factor = self.attention_factor
        if factor is not None:
            fault = positive(factor)  # "must be a positive number, up to 1e30", or None
            if fault:
                raise UsageError(f"--attention-factor is {factor}; give a positive number")
        if self.start and self.start not in FORMULAS:
            raise UsageError(
                f"--start {self.start} is not one of the formulas; choose {', '.join(FORMULAS)}"
            )
        if self.held_count < FEWEST:  # held_windows, or its default
            raise UsageError(
                f"the test on held-out text needs at least {FEWEST} windows; give --held-windows"
                f" {FEWEST}"
            )

    @property
    def held_count(self) -> int:
        """The windows of held-out text: as many as are searched, and enough for a test."""
        return self.held_windows or max(self.windows, FEWEST)


@dataclass(frozen=True)
class SearchCost:
    """The time of a search, which may end before its last step."""

    reads: int
    """Windows that are read."""

    gradients: int
    """Windows with a gradient."""

    read: float
    """Seconds to read a window."""

    gradient: float
    """Seconds for a gradient."""

    per_step: float
    """Seconds of a step."""

    @property
    def seconds(self) -> float:
        """The whole time."""
        return self.reads * self.read + self.gradients * self.gradient

    def to_dict(self) -> JsonObject:
        """Return the cost as JSON-ready data."""
        return {
            "reads": self.reads,
            "gradients": self.gradients,
            "estimate": {"seconds": round(self.seconds, 1)},
        }

    @property
    def sentence(self) -> str:
        """The estimate for the user."""
        return (
            f"Reading {self.reads:,} windows and {self.gradients:,} gradients take at most about "
            f"{format_duration(self.seconds)}."
        )

    def check(self, budget: float, steps: int) -> None:
        """Refuse a search that takes longer than a budget.

        Args:
            budget: The budget in seconds, 0 for none.
            steps: The steps of the search.

        Raises:
            UsageError: It takes longer; the message says what fits.
        """
        has_budget = budget != 0
        if not has_budget or self.seconds <= budget:
            return

        # Advise fewer steps. If no step fits, because the reading before the first one takes too
        # long, advise a smaller search.
        seconds_too_many = self.seconds - budget
        steps_too_many = seconds_too_many / self.per_step
        steps_that_fit = int(steps - steps_too_many)
        advice = "fewer --windows, a shorter --context, or a GPU"
        if steps_that_fit > 0:
            advice = f"--steps {steps_that_fit}"
        raise over_budget(self.seconds, budget, advice)


@dataclass
class Tuning:
    """A search and all that it needs."""

    model: str
    """The model as the user named it."""

    runner: CheckpointRunner
    """The runner with the model."""

    texts: Texts

    context: int
    """The tokens to reach."""

    settings: SearchSettings
    passes: Passes
    progress: Progress

    family: str = ""
    """The family as which the user wants the model to be treated; empty for its own."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.searched_texts, self.held_out_texts, self.held_out_note = split(
            self.texts, self.context
        )
        self.search_scorer = self._make_scorer(self.searched_texts, settings.windows)
        self.held_out_scorer = self._make_scorer(self.held_out_texts, settings.held_count)

        # without a test on held-out text, the search would be for nothing
        held_out = self.held_out_scorer.windows
        if not can_be_tested(held_out):
            raise UsageError(
                f"the test on held-out text needs at least {FEWEST} windows of"
                f" {format_tokens(self.context)} tokens, and the held-out part of this text gives"
                f" {len(held_out)}; give a longer --text, more texts, or a shorter --context"
            )

    def _make_scorer(self, texts: Texts, count: int) -> Scorer:
        """Return a scorer, which measures the loss of candidate frequencies on parts of texts.

        Args:
            texts: The texts of the search, or the held-out texts.
            count: The number of windows, which are parts of a text as long as the new context.
        """
        settings = self.settings
        sizes = EvaluationSizes(
            lengths=(self.context,),
            trained=self.runner.trained,  # the trained context in tokens
            windows=count,
            targets=settings.targets,
            seed=settings.seed,
        )
        # The search minimises a weighted sum of three losses: beyond the trained context (weight
        # 1), inside the trained context (--inside), and on hidden numbers (--needles).
        weights = Price(inside=settings.inside, needle=settings.needles)
        has_needles = settings.needles > 0
        return Scorer(
            runner=self.runner,
            windows=windows(texts, sizes, needles=has_needles),
            weights=weights,
            passes=self.passes,  # the journal, with the losses of an interrupted search
        )

    @cached_property
    def start(self) -> Start:
        """The model to tune."""

        def schedule(recipe: Recipe) -> Schedule:
            row = Row("", recipe)  # the runner takes rows of a table, and the name is not needed
            return self.runner.schedule(row)

        inspection = self.runner.inspection
        return Start(
            spec=self.runner.unscaled,
            context=self.context,
            schedule=schedule,
            present=inspection.spec if inspection.extended else None,
            on_top=bool(why_scaling_is_kept(inspection)),
        )

    @cached_property
    def formulas(self) -> list[Candidate]:
        """The formulas that reach the context, that of --start first."""
        first = []
        others = []
        for method in self.start.methods:
            formula = self.start.formula(method)
            if formula.method == self.settings.start:
                first.append(formula)
            else:
                others.append(formula)
        return first + others

    def estimate(self) -> SearchCost:
        """Return how long the search will take, by timing two windows and one gradient.

        The model computes these now. The journal keeps the results, so the search reuses them.
        """
        task = Task(
            start=self.start,
            scorer=self.search_scorer,
            formulas=self.formulas,
            settings=self.settings,
            progress=self.progress,
        )
        # the time of a window: of the first two the faster one, since the first warms up
        self.search_scorer.losses(task.first_formula.schedule, 2)
        read_seconds = min(self.search_scorer.seconds)
        gradient_seconds = gradient(task, task.initial, self.search_scorer.windows[0]).seconds

        # The search reads all its windows with each formula, or with --start only with one formula.
        # Then it reads them again with a candidate, every STEPS_BETWEEN_CHECKS steps.
        steps = self.settings.steps
        count = len(self.search_scorer.windows)
        read_formulas = 1 if self.settings.start else len(self.formulas)
        read_candidates = math.ceil(steps / STEPS_BETWEEN_CHECKS)
        search_reads = (read_formulas + read_candidates) * count

        # the test reads the held-out windows with each formula, the unchanged model and the result
        read_in_test = len(self.formulas) + 2
        held_out_reads = read_in_test * len(self.held_out_scorer.windows)

        # the mean time of a step: some gradients, and every few steps a reading of all windows
        seconds_of_gradients = WINDOWS_PER_STEP * gradient_seconds
        seconds_of_reading = count * read_seconds / STEPS_BETWEEN_CHECKS
        return SearchCost(
            reads=search_reads + held_out_reads,
            gradients=steps * WINDOWS_PER_STEP,
            read=read_seconds,
            gradient=gradient_seconds,
            per_step=seconds_of_gradients + seconds_of_reading,
        )

    def run(self) -> TuningResult:
        """Search for frequencies, and compare the result with the formulas on held-out windows.

        Windows are parts of the texts. Formulas are methods such as YaRN, from one of which the
        search starts.
        """
        settings = self.settings
        formulas_to_start_from = self._rank_formulas()
        task = Task(
            start=self.start,
            scorer=self.search_scorer,
            formulas=formulas_to_start_from,
            settings=settings,
            progress=self.progress,
        )
        self.progress.total(settings.steps)
        best = search(task)

        # The windows of the search cannot judge its result, which is fitted to them. The formula
        # that is best on the held-out windows is what the result must beat; for a model that is
        # scaled already, its own scaling is one of them.
        self.progress.note(f"Reading {len(self.held_out_scorer.windows)} held-out windows.")
        unchanged = self.start.unchanged()
        formulas_by_loss = _sort_by_loss(self.formulas, self.held_out_scorer)
        to_beat = list(formulas_by_loss)
        if unchanged.recipe is not None:
            to_beat.append(unchanged)
        reference = _sort_by_loss(to_beat, self.held_out_scorer)[0]
        candidates = [unchanged, *formulas_by_loss]
        if best not in formulas_by_loss:  # the search has found something better than its start
            candidates.append(best)
        table = rows(self.held_out_scorer, candidates, reference.name)
        return self._make_result(task, best, reference, table)

    def _make_result(
        self, task: Task, best: Candidate, reference: Candidate, table: list[TuningRow]
    ) -> TuningResult:
        """Return the result of a search that has ended: its verdict, its numbers, its settings.

        Args:
            task: The search.
            best: The best frequencies of the search.
            reference: The formula, such as YaRN, with the lowest loss on the held-out windows, or
                the unchanged model.
            table: The rows of all candidates on the held-out windows.
        """
        settings = self.settings
        chosen, is_better_than_formulas, sentence = self._choose_result(best, reference, table)
        assert chosen.recipe is not None

        # the curves have a point for each block of targets, at the position of its last target
        window = self.held_out_scorer.windows[0]
        positions = [int(window.text.targets[end - 1]) for _, end in blocks(window)]

        # the loss of the best candidate minus the loss of the first formula, on the windows of the
        # search; negative if the search has lowered the loss
        change_of_loss = task.gain(best).mean
        return TuningResult(
            recipe=chosen.recipe.to_dict(),
            better=is_better_than_formulas,
            sentence=sentence,
            best_formula=reference.name,
            source=self.model,
            identity=self.runner.source,
            runtime=self.runner.runtime,
            device=self.runner.device,
            dtype=self.runner.dtype,
            trained=self.runner.trained,
            context=self.context,
            steps=len(task.trace),
            seed=settings.seed,
            regularise=settings.regularise,
            price=settings.inside,  # the weight of the loss inside the trained context
            needles=settings.needles,  # the weight of the loss on hidden numbers
            texts=[document.name for document in self.searched_texts.documents],
            held_out=[document.name for document in self.held_out_texts.documents],
            tokens_sha256=self.texts.sha256,
            windows=len(self.search_scorer.windows),
            held_windows=len(self.held_out_scorer.windows),
            searched=change_of_loss,
            trace=task.trace,
            divisors=self.start.divisors(best.schedule).tolist(),
            formula_divisors=self.start.divisors(reference.schedule).tolist(),
            attention_factor=best.schedule.attention_factor,
            positions=positions,
            rows=table,
            notes=self._notes(chosen),
            apply_options=self.apply_options(chosen),
        )

    def apply_options(self, chosen: Candidate) -> list[str]:
        """Return the options that `apply` needs beside the recipe of a candidate."""
        options = []
        if self.start.present is not None and not chosen.keeps_scaling:
            options.append(REPLACE)
        if self.family:
            options += ["--family", self.family]
        return options

    def _notes(self, chosen: Candidate) -> list[str]:
        """Return sentences that belong to the numbers."""
        notes = [f"{self.held_out_note[0].upper()}{self.held_out_note[1:]}.", *self.texts.notes]
        if self.start.present is not None:
            extended = ", which the formulas extend" if self.start.on_top else ""
            notes.append(f"The row {BASE} has the present RoPE of the model{extended}.")
        if REPLACE in self.apply_options(chosen):
            notes.append(f"The model is extended already: apply the recipe with {REPLACE}.")
        return notes

    def _rank_formulas(self) -> list[Candidate]:
        """Return the formulas, first the one to begin with: that of --start, else the best one."""
        formulas = self.formulas
        size = f"{len(self.search_scorer.windows)} windows of {format_tokens(self.context)} tokens"
        if self.settings.start:
            self.progress.note(f"Searching from {formulas[0].name} on {size}.")
            return formulas

        self.progress.note(f"Reading {size} with {len(formulas)} formulas.")
        by_loss = _sort_by_loss(formulas, self.search_scorer)
        self.progress.note(f"{by_loss[0].name} has the lowest loss; searching from it.")
        return by_loss

    def _choose_result(
        self, best: Candidate, reference: Candidate, table: Sequence[TuningRow]
    ) -> tuple[Candidate, bool, str]:
        """Choose between the frequencies that the search found and the best formula.

        Args:
            best: The candidate with the lowest loss on the windows of the search: the tuned
                frequencies, or a formula such as YaRN if nothing better was found.
            reference: The formula with the lowest loss on the held-out windows, or the unchanged
                model if that is scaled and loses less.
            table: The rows of all candidates on the held-out windows.

        Returns:
            The chosen candidate, whether it is the tuned one, and a sentence with the reason.
        """
        recipe_of_reference = f"the recipe is {reference.name}"
        if reference.method == AsIs.name:
            recipe_of_reference = "the recipe keeps the RoPE of the model (as-is)"

        # the search found nothing better than a formula
        if best in self.formulas:
            addition = ""
            if best is not reference:
                addition = f", and on held-out text {reference.name} is as good or better"
            sentence = (
                f"The search found nothing better than {best.name}{addition};"
                f" {recipe_of_reference}."
            )
            return reference, False, sentence

        # the tuned frequencies must have a significantly lower loss on the held-out text
        (tuned_row,) = [row for row in table if row.name == best.name]
        held_out_loss = tuned_row.total  # with its difference to the loss of `reference`
        difference = _describe_gain(held_out_loss, reference.name)
        is_lower = held_out_loss.difference is not None and held_out_loss.difference < 0
        is_significant = held_out_loss.decided
        if is_lower and is_significant:
            return best, True, f"{best.name} is better: {difference}."
        sentence = f"{best.name} is not significantly better: {difference}; {recipe_of_reference}."
        return reference, False, sentence


def _describe_gain(total: WindowMeasurement, reference: str) -> str:
    """Return the difference of a candidate to the formula called `reference`, in words."""
    assert total.difference is not None
    number = f"{total.difference:+z.4f}"
    if total.error is not None:
        number += f" ± {total.error:.4f}"
    return f"{number} nat per token against {reference} on held-out text (n = {total.clusters})"


def _sort_by_loss(formulas: Sequence[Candidate], scorer: Scorer) -> list[Candidate]:
    """Return formulas by their mean loss on the windows of a scorer, the best one first."""

    def loss(formula: Candidate) -> float:
        return float(scorer.values(formula.schedule).mean())

    return sorted(formulas, key=loss)


def tune_model(
    model: str | os.PathLike[str],
    texts: TextLike | Iterable[TextLike],
    settings: SearchSettings,
    progress: Progress | None = None,
    journal: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TuningResult:
    """Search for RoPE frequencies with a lower loss on a text than YaRN and the other methods.

    Args:
        model: A checkpoint.
        texts: Files, patterns or texts, as in `gather_texts`. A part of them is held out of the
            search for the test.
        settings: The settings of the search.
        progress: Callbacks; total and advance count steps.
        journal: The file of finished passes, by default in the cache.
        options: Other fields of `RunnerRequest`, such as device, and `fresh` of `open_tuning`.

    Raises:
        UsageError: For wrong settings.
        BadSource: If the model or a text cannot be read.
    """
    path = None if journal is None else Path(journal)
    opened = open_tuning(str(model), gather_texts(texts), settings, progress, path, **options)
    with opened as tuning, advice_on_memory():
        return tuning.run()


@contextmanager
def open_tuning(
    model: str,
    files: Sequence[tuple[str, str]],
    settings: SearchSettings,
    progress: Progress | None = None,
    journal: Path | None = None,
    fresh: bool = False,
    keep: bool = True,
    **options: Any,
) -> Iterator[Tuning]:
    """Yield a search for frequencies, which can be estimated and run inside the block.

    Args:
        model: A checkpoint.
        files: Names and contents of texts.
        settings: The settings of the search.
        progress: Callbacks; total and advance count steps.
        journal: The file of finished passes, by default in the cache.
        fresh: Whether to start the journal anew.
        keep: Whether to keep passes in the journal; otherwise nothing is written.
        **options: As in `tune_model`.

    Raises:
        RopeconvError: As `tune_model` does.
    """
    settings.check()
    progress = progress or Progress()
    if names_gguf(model):
        raise UsageError(
            f"{model} is a GGUF file, which cannot be searched; tune the checkpoint that it was"
            " made of, and bake the recipe into the file with `ropeconv apply FILE.gguf --recipe`"
        )
    with ExitStack() as stack:
        # the search patches its own schedules into the unchanged model
        opening = RunnerRequest(model, [Row(BASE)], **options)
        runner, _ = stack.enter_context(open_runner(opening))
        assert isinstance(runner, CheckpointRunner)
        context = parse_tokens(settings.context)
        _check_context(runner, model, context)
        check_gradient(runner.loaded.model, context)
        texts = tokenize(files, runner.tokenizer)

        # passes of the model that an earlier run has finished are not run again
        passes = Passes()
        if keep:
            path = journal or default_path(runner.source, "tune")
            opened = stack.enter_context(Journal(path, TUNE, runner.source, fresh))
            for sentence in opened.notes:
                progress.note(sentence)
            if opened.lines:
                number = counted(len(opened.lines), "pass is", "passes are")
                progress.note(f"{number} in the journal, {opened.path}.")
            passes = Passes(opened, engine=f"{runner.runtime} {runner.device} {runner.dtype}")
        yield Tuning(
            model=model,
            runner=runner,
            texts=texts,
            context=context,
            settings=settings,
            passes=passes,
            progress=progress,
            family=opening.family,
        )


def _check_context(runner: CheckpointRunner, model: str, context: int) -> None:
    """Refuse a context to which the model cannot be extended, as `apply` and `advise` do.

    Raises:
        UsageError: The model is trained for that length, or declares it.
        RopeconvError: No layer sees it, or the scaling that is kept covers more than is declared.
    """
    inspection = runner.inspection
    declared = inspection.spec.context
    advice = "give a --context above that, to extend it to"
    if context <= runner.trained:
        raise UsageError(f"{model} is trained for {runner.trained:,} tokens; {advice}")
    if context <= declared:
        raise UsageError(f"{model} declares {declared:,} tokens; {advice}")

    obstacle = nothing_to_extend(inspection, context)
    if obstacle:
        raise RopeconvError(f"{model} cannot be extended: {obstacle}")
    if why_scaling_is_kept(inspection):
        refuse_undeclared(inspection)
