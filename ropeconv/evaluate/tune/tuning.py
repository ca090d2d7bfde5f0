"""Tuning: formulas, a search from the best one, and a test on held-out text."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...engines.engine import Progress
from ...engines.transformers.differentiable import check_gradient
from ...errors import UsageError
from ...formats.journal import Journal, default_path
from ...formats.jsontext import JsonObject
from ...formats.texts import TextLike
from ...models.reference import names_gguf
from ...options import TuneOptions
from ...rope.errors import counted
from ...rope.lengths import format_tokens, parse_tokens
from ...rope.methods.method import positive
from ..cases import EvaluationSizes
from ..evaluation import duration
from ..result import FEWEST
from ..row import BASE, Row
from ..runners.checkpoint import CheckpointRunner
from ..runners.opening import open_runner
from ..runners.runner import RunnerRequest
from ..texts import Texts, gather_texts, tokenize
from .result import FORMULAS, Candidate, Start, TuningResult, TuningRow
from .scorer import TUNE, Passes, Price, Scorer, blocks, rows, split, windows
from .search import BATCH, CHECKED, Task, gradient, search


@dataclass(frozen=True)
class SearchSettings(TuneOptions):
    """The settings of a search, as users write them; the fields are those of `TuneOptions` in
    ropeconv/options.py.
    """

    def check(self) -> None:
        """Raise UsageError and RecipeError for wrong values."""
        parse_tokens(self.context)
        for name in ("windows", "targets", "steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}; give a positive number")
        for name in ("inside", "needles", "regularise", "held_windows"):
            if not getattr(self, name) >= 0:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; give 0 or more"
                )
        if self.attention_factor is not None and positive(self.attention_factor):
            raise UsageError(
                f"--attention-factor is {self.attention_factor}; give a positive number"
            )
        if self.start and self.start not in FORMULAS:
            raise UsageError(
                f"--start {self.start} is not one of the formulas; choose {', '.join(FORMULAS)}"
            )
        if (self.held_windows or self.windows) < FEWEST:
            raise UsageError(
                f"the test on held-out text needs at least {FEWEST} windows; give --held-windows"
                f" {FEWEST}"
            )


@dataclass(frozen=True)
class SearchCost:
    """The time of a search, which may end before its last step.

    reads: windows that are read. gradients: windows with a gradient. read, gradient: seconds of
    one. per_step: seconds of one step.
    """

    reads: int
    gradients: int
    read: float
    gradient: float
    per_step: float

    @property
    def seconds(self) -> float:
        """The whole time."""
        return self.reads * self.read + self.gradients * self.gradient

    def to_dict(self) -> JsonObject:
        """JSON-ready data."""
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
            f"{duration(self.seconds)}."
        )

    def check(self, budget: float, steps: int) -> None:
        """Raises UsageError, with what fits, where it takes longer than a budget in seconds; 0 for
        none.
        """
        if not budget or self.seconds <= budget:
            return
        fewer = int(steps - (self.seconds - budget) / self.per_step)
        fits = f"--steps {fewer}" if fewer > 0 else "fewer --windows, a shorter --context, or a GPU"
        raise UsageError(
            f"this takes about {duration(self.seconds)}, and --budget is {duration(budget)}; what"
            f" fits: {fits}"
        )


@dataclass
class Tuning:
    """A search and all that it needs. model: as the user named it. runner: with the model. context:
    tokens to reach.
    """

    model: str
    runner: CheckpointRunner
    texts: Texts
    context: int
    settings: SearchSettings
    passes: Passes
    progress: Progress

    def __post_init__(self) -> None:
        settings = self.settings
        self.searched, self.held, self.held_note = split(self.texts, self.context)
        self.scorer = self._scorer(self.searched, settings.windows)
        self.judge = self._scorer(self.held, settings.held_windows or settings.windows)

    def _scorer(self, texts: Texts, count: int) -> Scorer:
        settings = self.settings
        sizes = EvaluationSizes(
            (self.context,), self.runner.trained, count, settings.targets, seed=settings.seed
        )
        read = windows(texts, sizes, settings.needles > 0)
        return Scorer(self.runner, read, Price(settings.inside, settings.needles), self.passes)

    @cached_property
    def start(self) -> Start:
        """The model to tune."""
        return Start(
            self.runner.unscaled, self.context, lambda recipe: self.runner.schedule(Row("", recipe))
        )

    @cached_property
    def formulas(self) -> list[Candidate]:
        """The formulas that reach the context, that of --start first."""
        formulas = map(self.start.formula, FORMULAS)
        return sorted(formulas, key=lambda candidate: candidate.method != self.settings.start)

    def estimate(self) -> SearchCost:
        """The cost of the search, after the first two windows and a gradient, which are kept in the
        journal.
        """
        steps = self.settings.steps
        task = Task(self.start, self.scorer, self.formulas, self.settings, self.progress)
        self.scorer.losses(task.first.schedule, 2)
        read = min(self.scorer.seconds)
        slope = gradient(task, task.initial, self.scorer.windows[0]).seconds
        count = len(self.scorer.windows)
        ranked = 1 if self.settings.start else len(self.formulas)
        reads = (ranked + math.ceil(steps / CHECKED)) * count + (len(self.formulas) + 2) * len(
            self.judge.windows
        )
        return SearchCost(reads, steps * BATCH, read, slope, BATCH * slope + count * read / CHECKED)

    def run(self) -> TuningResult:
        """Searches, and measures the result on held-out windows."""
        settings = self.settings
        progress = self.progress
        scorer = self.scorer
        judge = self.judge
        task = Task(self.start, scorer, self._ranked(), settings, progress)
        progress.total(settings.steps)
        best = search(task)
        progress.note(f"Reading {len(judge.windows)} held-out windows.")
        by_loss = sorted(
            self.formulas, key=lambda formula: float(judge.values(formula.schedule).mean())
        )
        reference = by_loss[0]
        shown = [self.start.unscaled(), *by_loss, *([] if best in by_loss else [best])]
        table = rows(judge, shown, reference.name, settings.seed)
        chosen, better, sentence = self._verdict(best, reference, table)
        gain = task.gain(best)
        assert chosen.recipe is not None
        notes = [f"{self.held_note[0].upper()}{self.held_note[1:]}.", *self.texts.notes]
        if self.runner.inspection.spec.scaled:
            notes.append("The model is scaled already: apply the recipe with --replace.")
        return TuningResult(
            recipe=chosen.recipe.to_dict(),
            better=better,
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
            price=settings.inside,
            needles=settings.needles,
            texts=[document.name for document in self.searched.documents],
            held_out=[document.name for document in self.held.documents],
            tokens_sha256=self.texts.sha256,
            windows=len(scorer.windows),
            held_windows=len(judge.windows),
            searched=gain.mean,
            trace=task.trace,
            divisors=self.start.divisors(best.schedule).tolist(),
            formula_divisors=self.start.divisors(reference.schedule).tolist(),
            attention_factor=best.schedule.attention_factor,
            positions=[
                int(judge.windows[0].text.targets[last - 1]) for _, last in blocks(judge.windows[0])
            ],
            rows=table,
            notes=notes,
        )

    def _ranked(self) -> list[Candidate]:
        """The formulas, the one to begin with first: that of --start, otherwise the best one."""
        settings = self.settings
        formulas = self.formulas
        progress = self.progress
        scorer = self.scorer
        size = f"{len(scorer.windows)} windows of {format_tokens(self.context)} tokens"
        if settings.start:
            progress.note(f"Searching from {formulas[0].name} on {size}.")
            return formulas
        progress.note(f"Reading {size} with {len(formulas)} formulas.")
        formulas = sorted(
            formulas, key=lambda formula: float(scorer.values(formula.schedule).mean())
        )
        progress.note(f"{formulas[0].name} has the lowest loss; searching from it.")
        return formulas

    def _verdict(
        self, best: Candidate, reference: Candidate, table: Sequence[TuningRow]
    ) -> tuple[Candidate, bool, str]:
        """The candidate to bake, whether it is the result of the search, and a sentence."""
        total = next(row for row in table if row.name == best.name).total
        if best in self.formulas:
            also = (
                ""
                if best is reference
                else f", and on held-out text {reference.name} is as good or better"
            )
            words = (
                f"The search found nothing better than {best.name}{also}; the recipe is"
                f" {reference.name}."
            )
            return reference, False, words
        assert total.difference is not None
        errors = f" ± {total.error:.4f}" if total.error is not None else ""
        words = (
            f"{total.difference:+.4f}{errors} nat per token against {reference.name} on held-out"
            f" text (n = {total.clusters})"
        )
        if total.difference < 0 and total.decided:
            return best, True, f"{best.name} is better: {words}."
        return (
            reference,
            False,
            f"{best.name} is not significantly better: {words}; the recipe is {reference.name}.",
        )


def tune_model(
    model: str | os.PathLike[str],
    texts: TextLike | Iterable[TextLike],
    settings: SearchSettings,
    progress: Progress | None = None,
    journal: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TuningResult:
    """Search for frequencies with a lower loss on a text than every formula.

    Args:
        model: A checkpoint.
        texts: Files, patterns or texts, as in `gather_texts`. A part of them is held out of the
            search for the test.
        settings: The settings of the search.
        progress: Callbacks; total and advance count steps.
        journal: The file of finished passes, by default in the cache.
        options: Other fields of `RunnerRequest`, such as device.

    Raises:
        UsageError: For wrong settings.
        BadSource: If the model or a text cannot be read.
    """
    path = None if journal is None else Path(journal)
    with open_tuning(
        str(model), gather_texts(texts), settings, progress, path, **options
    ) as tuning:
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
    """A search that can be estimated and run while it is entered.

    files: names and contents of texts. fresh: start the journal anew. keep: passes in the journal;
    otherwise nothing is written. model, settings, progress, journal, options: as in `tune_model`,
    and it raises as that does.
    """
    settings.check()
    progress = progress or Progress()
    if names_gguf(model):
        raise UsageError(
            f"{model} is a GGUF file, which cannot be searched; tune the checkpoint that it was"
            " made of, and bake the recipe into the file with `ropeconv apply FILE.gguf --recipe`"
        )
    with ExitStack() as stack:
        opening = RunnerRequest(model, [Row(BASE)], **options)
        runner, _ = stack.enter_context(open_runner(opening))
        assert isinstance(runner, CheckpointRunner)
        context = parse_tokens(settings.context)
        if context <= runner.trained:
            raise UsageError(
                f"{model} is trained for {runner.trained:,} tokens; give a --context above that, to"
                " extend it to"
            )
        check_gradient(runner.loaded.model, context)
        texts = tokenize(files, runner.tokenizer)
        passes = Passes()
        if keep:
            path = journal or default_path(runner.source, "tune")
            opened = stack.enter_context(Journal(path, TUNE, runner.source, fresh))
            for sentence in opened.notes:
                progress.note(sentence)
            if opened.lines:
                progress.note(
                    f"{counted(len(opened.lines), 'pass is', 'passes are')} in the journal,"
                    f" {opened.path}."
                )
            passes = Passes(opened, f"{runner.runtime} {runner.device} {runner.dtype}")
        yield Tuning(model, runner, texts, context, settings, passes, progress)
