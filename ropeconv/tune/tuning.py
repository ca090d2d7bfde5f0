"""Tuning: formulas, a search, and the verdict of held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..engines import Progress
from ..errors import UsageError
from ..evaluate.result import decided
from ..evaluate.row import Row
from ..evaluate.runners.patched import Patched
from ..evaluate.texts.documents import Texts
from ..rope.lengths import format_tokens
from .candidate import Candidate, Start
from .held_out import blocks, rows
from .result import Tuned, TunedRow
from .scorer import Price, Scorer
from .searches import Search, Task
from .wanted import Wanted
from .windows import Size, split, windows


@dataclass
class Tuning:
    """A search with its surroundings.

    model: as the user named it. runner: with the model loaded. texts: all of them. context: tokens to reach. search: by
    which. wanted: as the user wrote it. progress: callbacks.
    """

    model: str
    runner: Patched
    texts: Texts
    context: int
    search: Search
    wanted: Wanted
    progress: Progress

    @cached_property
    def start(self) -> Start:
        """The model that recipes are for."""
        return Start(self.runner.unscaled, self.context, lambda recipe: self.runner.schedule(Row("", recipe)))

    @cached_property
    def formulas(self) -> list[Candidate]:
        """The formulas that reach the context."""
        return self.start.formulas()

    def run(self) -> Tuned:
        """Searches, and measures what was found on held-out windows. Raises BadSource where the texts are too short."""
        wanted, heard = self.wanted, self.progress
        searched, held, held_note = split(self.texts, self.context)
        price = Price(wanted.inside, wanted.needles)
        scorer = Scorer(self.runner, windows(searched, self._size(wanted.windows)), price)
        judge = Scorer(self.runner, windows(held, self._size(wanted.held_windows or wanted.windows)), price)
        formulas = self.formulas
        heard.note(
            f"Reading {len(scorer.windows)} windows of {format_tokens(self.context)} tokens with {len(formulas)} "
            "formulas."
        )
        formulas.sort(key=lambda one: float(scorer.values(one.schedule).mean()))
        task = self._task(scorer, formulas)
        begun = task.formulas[0]
        heard.note(f"{formulas[0].name} loses least; searching {wanted.over} by {self.search.name} from {begun.name}.")
        heard.total(wanted.steps or self.search.steps)
        best = self.search.run(task)
        heard.note(f"Reading {len(judge.windows)} held-out windows.")
        shown = [self.start.unscaled(), *formulas, *([] if best in formulas else [best])]
        reference = min(formulas, key=lambda one: float(judge.values(one.schedule).mean()))
        table = rows(judge, shown, reference.name, wanted.seed)
        chosen, better, sentence = self._verdict(best, reference, table)
        gain = task.gain(best)
        assert chosen.recipe is not None
        return Tuned(
            recipe=chosen.recipe.to_dict(), better=better, sentence=sentence, best_formula=reference.name,
            source=self.model, identity=self.runner.source, runtime=self.runner.runtime, device=self.runner.device,
            dtype=self.runner.dtype, trained=self.runner.trained, context=self.context, over=wanted.over,
            by=self.search.name, steps=len(task.trace), seed=wanted.seed, regularise=wanted.regularise,
            price=wanted.inside, needles=wanted.needles, texts=[one.name for one in searched.documents],
            held_out=[one.name for one in held.documents], tokens_sha256=self.texts.sha256, windows=len(scorer.windows),
            held_windows=len(judge.windows), searched=gain.mean, trace=task.trace,
            divisors=self.start.divisors(best.schedule).tolist(),
            formula_divisors=self.start.divisors(reference.schedule).tolist(),
            attention_factor=best.schedule.attention_factor,
            positions=[int(judge.windows[0].text.targets[last - 1]) for _, last in blocks(judge.windows[0])],
            rows=table, notes=[f"{held_note[0].upper()}{held_note[1:]}.", *self.texts.notes, *self._scaled],
        )  # fmt: skip

    @property
    def _scaled(self) -> list[str]:
        """What a recipe for the unscaled RoPE needs beside it."""
        return ["The model is scaled already: apply the recipe with --replace."] * self.runner.inspection.spec.scaled

    def _size(self, count: int) -> Size:
        wanted = self.wanted
        return Size(self.context, self.runner.trained, count, wanted.targets, wanted.needles > 0, wanted.seed)

    def _task(self, scorer: Scorer, formulas: Sequence[Candidate]) -> Task:
        """The task of the search. formulas: best first. Raises UsageError where --start names none of them."""
        wanted = self.wanted
        first = [one for one in formulas if one.method == wanted.start] if wanted.start else formulas[:1]
        if not first:
            known = ", ".join(one.method for one in formulas)
            raise UsageError(f"--start {wanted.start} is no formula to begin with; choose {known}")
        return Task(
            self.start, self.runner.loaded.model, self.runner.inspection.spec, scorer,
            [*first, *(one for one in formulas if one not in first)], wanted.over, wanted.steps,
            wanted.attention_factor, wanted.regularise, wanted.seed, self.progress,
        )  # fmt: skip

    def _verdict(self, best: Candidate, reference: Candidate, table: Sequence[TunedRow]) -> tuple[Candidate, bool, str]:
        """What to bake, whether that is what was found, and a sentence.

        best: that was found. reference: the formula that loses least on held-out text. table: of all of them there.
        """
        total = next(one for one in table if one.name == best.name).total
        if best in self.formulas:
            said = f"The search found nothing better than {best.name}"
            also = "" if best is reference else f", and on held-out text {reference.name} is as good or better"
            return reference, False, f"{said}{also}; the recipe is {reference.name}."
        assert total.difference is not None
        errors = f" ± {total.error:.4f}" if total.error is not None else ""
        said = f"{total.difference:+.4f}{errors} nat per token against {reference.name} on held-out text"
        if total.error and total.difference < 0 and decided(total.difference, total.error):
            return best, True, f"{best.name} is better: {said}, {-total.difference / total.error:.1f} standard errors."
        return (
            reference,
            False,
            f"{best.name} is not better beyond three standard errors: {said}, the recipe.",
        )
