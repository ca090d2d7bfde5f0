"""Tuning: formulas, a search, and the verdict of held-out text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...engines.engine import Progress
from ...errors import UsageError
from ...formats.journal import Journal, default_path
from ...options import TuneOptions
from ...rope.errors import counted
from ...rope.lengths import format_tokens, parse_tokens
from ...rope.methods.method import positive
from ..row import BASE, Row
from ..runners.checkpoint import CheckpointRunner
from ..runners.opening import open_runner
from ..runners.runner import RunnerRequest
from ..texts import Texts, read_files, tokenized
from .result import FORMULAS, Candidate, Start, TunedRow, TuningResult
from .scorer import TUNE, Passes, Price, Scorer, Size, blocks, rows, split, windows
from .search import Task, search


@dataclass(frozen=True)
class SearchSettings(TuneOptions):
    """What is searched for, as users write it: the fields are those of `TuneOptions` in ropeconv/options.py."""

    def check(self) -> None:
        """Raises UsageError and RecipeError for values that cannot be taken."""
        parse_tokens(self.context)
        for name in ("windows", "targets", "steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}; give a positive number")
        for name in ("inside", "needles", "regularise", "held_windows"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give 0 or more")
        if self.attention_factor is not None and positive(self.attention_factor):
            raise UsageError(f"--attention-factor is {self.attention_factor}; give a positive number")
        if self.start and self.start not in FORMULAS:
            raise UsageError(f"--start {self.start} is not a formula to begin with; choose {', '.join(FORMULAS)}")
        if self.windows < 2 or self.held_windows == 1:
            raise UsageError("errors need two windows at least; give a larger --windows or --held-windows")


@dataclass
class Tuning:
    """A search with its surroundings.

    model: as the user named it. runner: with the model loaded. texts: all of them. context: tokens to reach. wanted: as
    the user wrote it. passes: of earlier runs. progress: callbacks.
    """

    model: str
    runner: CheckpointRunner
    texts: Texts
    context: int
    wanted: SearchSettings
    passes: Passes
    progress: Progress

    @cached_property
    def start(self) -> Start:
        """The model that recipes are for."""
        return Start(self.runner.unscaled, self.context, lambda recipe: self.runner.schedule(Row("", recipe)))

    @cached_property
    def formulas(self) -> list[Candidate]:
        """The formulas that reach the context, that of --start first."""
        return sorted(self.start.formulas(), key=lambda one: one.method != self.wanted.start)

    def run(self) -> TuningResult:
        """Searches, and measures what was found on held-out windows. Raises BadSource where the texts are too short."""
        wanted, heard = self.wanted, self.progress
        searched, held, held_note = split(self.texts, self.context)
        price = Price(wanted.inside, wanted.needles)
        scorer = Scorer(self.runner, windows(searched, self._size(wanted.windows)), price, self.passes)
        judge = Scorer(
            self.runner, windows(held, self._size(wanted.held_windows or wanted.windows)), price, self.passes
        )
        task = Task(
            self.start, self.runner.loaded.model, self.runner.inspection.spec, scorer, self._ranked(scorer),
            wanted.steps, wanted.attention_factor, wanted.regularise, wanted.seed, heard,
        )  # fmt: skip
        heard.total(wanted.steps)
        best = search(task)
        heard.note(f"Reading {len(judge.windows)} held-out windows.")
        by_loss = sorted(self.formulas, key=lambda one: float(judge.values(one.schedule).mean()))
        reference = by_loss[0]
        shown = [self.start.unscaled(), *by_loss, *([] if best in by_loss else [best])]
        table = rows(judge, shown, reference.name, wanted.seed)
        chosen, better, sentence = self._verdict(best, reference, table)
        gain = task.gain(best)
        assert chosen.recipe is not None
        notes = [f"{held_note[0].upper()}{held_note[1:]}.", *self.texts.notes]
        if self.runner.inspection.spec.scaled:
            notes.append("The model is scaled already: apply the recipe with --replace.")
        return TuningResult(
            recipe=chosen.recipe.to_dict(), better=better, sentence=sentence, best_formula=reference.name,
            source=self.model, identity=self.runner.source, runtime=self.runner.runtime, device=self.runner.device,
            dtype=self.runner.dtype, trained=self.runner.trained, context=self.context,
            steps=len(task.trace), seed=wanted.seed, regularise=wanted.regularise,
            price=wanted.inside, needles=wanted.needles, texts=[one.name for one in searched.documents],
            held_out=[one.name for one in held.documents], tokens_sha256=self.texts.sha256, windows=len(scorer.windows),
            held_windows=len(judge.windows), searched=gain.mean, trace=task.trace,
            divisors=self.start.divisors(best.schedule).tolist(),
            formula_divisors=self.start.divisors(reference.schedule).tolist(),
            attention_factor=best.schedule.attention_factor,
            positions=[int(judge.windows[0].text.targets[last - 1]) for _, last in blocks(judge.windows[0])],
            rows=table, notes=notes,
        )  # fmt: skip

    def _size(self, count: int) -> Size:
        wanted = self.wanted
        return Size(self.context, self.runner.trained, count, wanted.targets, wanted.needles > 0, wanted.seed)

    def _ranked(self, scorer: Scorer) -> list[Candidate]:
        """The formulas, the one to begin with first: that of --start, else the one that loses least."""
        wanted, formulas, heard = self.wanted, self.formulas, self.progress
        size = f"{len(scorer.windows)} windows of {format_tokens(self.context)} tokens"
        if wanted.start:
            heard.note(f"Searching from {formulas[0].name} on {size}.")
            return formulas
        heard.note(f"Reading {size} with {len(formulas)} formulas.")
        formulas = sorted(formulas, key=lambda one: float(scorer.values(one.schedule).mean()))
        heard.note(f"{formulas[0].name} loses least; searching from it.")
        return formulas

    def _verdict(self, best: Candidate, reference: Candidate, table: Sequence[TunedRow]) -> tuple[Candidate, bool, str]:
        """What to bake, whether that is what was found, and a sentence."""
        total = next(one for one in table if one.name == best.name).total
        if best in self.formulas:
            said = f"The search found nothing better than {best.name}"
            also = "" if best is reference else f", and on held-out text {reference.name} is as good or better"
            return reference, False, f"{said}{also}; the recipe is {reference.name}."
        assert total.difference is not None
        errors = f" ± {total.error:.4f}" if total.error is not None else ""
        said = f"{total.difference:+.4f}{errors} nat per token against {reference.name} on held-out text"
        if total.difference < 0 and total.decided:
            return best, True, f"{best.name} is better: {said} (n = {total.clusters})."
        return reference, False, f"{best.name} is not significantly better: {said} (n = {total.clusters}), the recipe."


def tune_model(
    model: str | os.PathLike[str],
    texts: Sequence[str | os.PathLike[str]],
    wanted: SearchSettings,
    progress: Progress | None = None,
    journal: str | os.PathLike[str] | None = None,
    **options: str | bool | int,
) -> TuningResult:
    """Looks for frequencies that lose less on a text than every formula does.

    model: a checkpoint. texts: files or patterns; a part of them is held out of the search, and decides. wanted: what
    is searched for. progress: callbacks; total and advance count steps. journal: the file of finished passes, by
    default in the cache. options: other fields of `RunnerRequest`, such as device. Raises UsageError for values that
    cannot be taken, BadSource where a model or a text cannot be read.
    """
    path = None if journal is None else Path(journal)
    return tune_texts(str(model), read_files([str(name) for name in texts]), wanted, progress, path, False, **options)


def tune_texts(
    model: str,
    files: Sequence[tuple[str, str]],
    wanted: SearchSettings,
    progress: Progress | None = None,
    journal: Path | None = None,
    fresh: bool = False,
    **options: str | bool | int,
) -> TuningResult:
    """As `tune_model`, with texts that have been read.

    files: their names and contents. fresh: start the journal anew. model, wanted, progress, journal, options: as there.
    """
    wanted.check()
    heard = progress or Progress()
    if model.endswith(".gguf"):
        raise UsageError(
            f"{model} is a GGUF file, which cannot be searched; tune the checkpoint that it was made of, and bake the "
            "recipe into the file with `ropeconv apply FILE.gguf --recipe`"
        )
    with open_runner(RunnerRequest(model, [Row(BASE)], **options)) as (runner, _):  # type: ignore[arg-type]
        assert isinstance(runner, CheckpointRunner)
        context = parse_tokens(wanted.context)
        if context <= runner.trained:
            raise UsageError(
                f"{model} is trained for {runner.trained:,} tokens; give a --context above that, to extend it to"
            )
        texts, by = tokenized(files, runner.tokenizer), f"{runner.runtime} {runner.device} {runner.dtype}"
        with Journal(journal or default_path(runner.source, "tune"), TUNE, runner.source, fresh) as opened:
            for sentence in opened.notes:
                heard.note(sentence)
            if opened.lines:
                heard.note(f"{counted(len(opened.lines), 'pass is', 'passes are')} in the journal, {opened.path}.")
            return Tuning(model, runner, texts, context, wanted, Passes(opened, by), heard).run()
