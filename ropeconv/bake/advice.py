"""Compares the methods that reach a length by numbers that need no run of the model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..convert.encoding import ENCODINGS, EncodeRequest
from ..convert.target import Target
from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..inspection.inspection import inspect_source
from ..models.config import sample_config
from ..models.family import Family
from ..models.gguf import GgufSource
from ..models.registry import families
from ..models.source import Source
from ..options import Format
from ..rope.bound.reach import Profile, profile
from ..rope.errors import RecipeError, RopeconvError
from ..rope.methods.method import REGISTRY, Method
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..runtimes.grouping import grouped
from ..runtimes.read_config import read_spec
from ..runtimes.runtime import WRONG
from ..runtimes.verdict import Verdict
from .apply import make_plan

PUBLISHED_ORDER = ("yarn", "by-parts", "mixed", "ntk-fixed", "ntk", "ntk-old")
"""Methods without fine-tuning by published comparisons, best first: Peng et al. 2023 for the parts, Su 2023 for NTK."""
CRITERION = (
    "reported to work without fine-tuning at this factor; then the order of published comparisons (Peng et al. 2023, "
    "Su 2023); then fewer dimensions outside the trained angles, then the longer effective length, "
    "then the smaller change of the pairs that complete a period"
)


@dataclass(frozen=True)
class FormatAdvice:
    """The planned output of one format: its encoding and verdicts, or the reason why it cannot hold the schedule."""

    encoding: str
    verdicts: tuple[Verdict, ...]
    reason: str = ""

    @property
    def exceptions(self) -> str:
        """For display: the runtimes that do not compute it exactly, by status; empty where all do."""
        found = grouped(self.verdicts)
        return "; ".join(f"{status}: {names}" for status, names in found if status in WRONG)

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        rows = [verdict.to_dict() for verdict in self.verdicts]
        return {"encoding": self.encoding or None, "runtimes": rows, "reason": self.reason or None}


@dataclass(frozen=True)
class Advice:
    """One method at the wanted length.

    method: with its parameters. schedule: of the model. profile: numbers about the schedule. works_untuned: whether the
    method is reported to work at this factor without fine-tuning. writings: per format. command: that bakes it.
    context, replace: options that it needs, None and False where it does not.
    """

    method: Method
    schedule: Schedule
    profile: Profile
    works_untuned: bool
    writings: dict[str, FormatAdvice]
    command: str
    context: int | None = None
    replace: bool = False

    @property
    def rank(self) -> tuple[Any, ...]:
        """The key by which advice is sorted, best first, as CRITERION explains it."""
        first = self.profile.reach.first_violation
        effective = self.schedule.context if first is None else min(first - 1, self.schedule.context)
        ranked = self.method.name in PUBLISHED_ORDER
        place = PUBLISHED_ORDER.index(self.method.name) if ranked else len(PUBLISHED_ORDER)
        numbers = (self.profile.outside, -effective, self.profile.fast_change)
        return not self.works_untuned, place, *numbers, self.method.name

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data, with the recipe; keys stay within a schema."""
        return {
            "method": self.method.name,
            "recipe": Recipe(self.method, context=self.schedule.context).to_dict(),
            "command": self.command,
            "context": self.schedule.context,
            "attention_factor": self.schedule.attention_factor,
            **self.profile.to_dict(),
            "works_untuned": self.works_untuned,
            "finetuning_note": self.method.finetuning_note,
            "outputs": {name: writing.to_dict() for name, writing in self.writings.items()},
        }


def advise(
    source: Source | GgufSource, context: int, outputs: Sequence[Format] | None = None
) -> tuple[list[Advice], dict[str, str]]:
    """Advice on every method that reaches a length, sorted by CRITERION, and the reason per method that does not fit.

    source: the model; a scaled one is judged from its unscaled RoPE. context: in tokens. outputs: formats that are
    planned, None for all that it can have. Raises UsageError for a context within the trained one.
    """
    seen = inspect_source(source)
    spec, declared = seen.first_spec, seen.spec.context
    start = spec.unscaled() if spec.scaled else spec
    if context <= start.original_context:
        raise UsageError(
            f"--context {context} is within the trained {start.original_context} tokens; give a longer one"
        )
    found, passed, scaled = [], {}, seen.extended or spec.scaled
    for name, kind in REGISTRY.items():
        try:
            method = kind.reaching(start, context)
            if method is None:
                continue
            recipe = Recipe(method, context=context)
            schedule = recipe.schedule(replace(start, context=context))
        except RecipeError as problem:
            passed[name] = str(problem)
            continue
        writings, planned = _writings(source, recipe, outputs)
        named = method.schedule(start).context != context or context < declared
        found.append(
            Advice(
                method=method,
                schedule=planned or schedule,
                profile=profile(schedule, start),
                works_untuned=context / start.original_context <= method.max_untuned_factor,
                writings=writings,
                command=f"ropeconv apply {source.reference} {method.command}"
                + (f" --context {context}" if named else "")
                + (" --replace" if scaled else ""),
                context=context if named else None,
                replace=scaled,
            )
        )
    return sorted(found, key=lambda one: one.rank), passed


def _writings(
    source: Source | GgufSource, recipe: Recipe, wanted: Sequence[Format] | None
) -> tuple[dict[str, FormatAdvice], Schedule | None]:
    """The planned output of a recipe per format, and the planned schedule, None where every format refuses."""
    known: tuple[Format, ...] = ("gguf",) if isinstance(source, GgufSource) else ("safetensors", "gguf")
    outputs = known if wanted is None else wanted
    found: dict[str, FormatAdvice] = {}
    schedule = None
    for name in outputs:
        try:
            plan = make_plan(source, recipe, Target(to=name, replace=True))
        except RopeconvError as problem:
            found[name] = FormatAdvice("", (), str(problem))
        else:
            found[name] = FormatAdvice(plan.result.encoding, plan.result.verdicts)
            schedule = schedule or plan.schedule
    return found, schedule


def leaders(found: list[Advice]) -> list[str]:
    """A sentence per number in which methods differ, with the best value and every method that has it."""
    if not found:
        return []

    def least(question: str, key: Callable[[Advice], float], words: Callable[[float], str]) -> str:
        best = min(key(one) for one in found)
        names = [one.method.command for one in found if math.isclose(key(one), best, rel_tol=1e-9, abs_tol=1e-9)]
        return f"{question}: {'all' if len(names) == len(found) else ', '.join(names)} ({words(best)})."

    context = found[0].schedule.context
    return [
        least("Fewest dimensions outside the trained angles", lambda one: one.profile.outside, lambda n: f"{n:g}"),
        least(
            "Longest effective length",
            lambda one: -min((one.profile.reach.effective_length or math.inf), context),
            lambda n: f"{-n:,.0f} of {context:,} tokens",
        ),
        least(
            "Smallest change of the pairs that complete a period in the trained length",
            lambda one: one.profile.fast_change,
            lambda n: f"by at most {n:.3g}",
        ),
    ]


METHODS: dict[str, tuple[str, str]] = {
    "theta": ("ntk", "native"),
    "linear": ("linear", "native"),
    "llama3": ("llama3", "native"),
    "yarn": ("yarn", "native"),
    "factors": ("mixed", "factors"),
}
"""The method and the encoding that stand for each way to write RoPE; any other method is written in one of them."""


@dataclass(frozen=True)
class MatrixCell:
    """A verdict on a family. writing: a key of METHODS."""

    family: str
    writing: str
    verdict: Verdict

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        return {"family": self.family, "writing": self.writing, **self.verdict.to_dict()}


@cache
def matrix() -> tuple[MatrixCell, ...]:
    """A cell per family, way to write RoPE, and row of the table of runtimes.

    A family has none for a way that its stock class does not take.
    """
    return tuple(cell for family in families() if not family.refuse for cell in _of_family(family))


def _of_family(family: Family) -> Iterator[MatrixCell]:
    config = sample_config(family)
    spec = read_spec(config, family)
    base = spec.unscaled() if spec.scaled else spec
    for writing, (method, encoding) in METHODS.items():
        try:
            schedule = Recipe(REGISTRY[method](4.0)).schedule(base)  # type: ignore[call-arg]
            request = EncodeRequest(schedule, base, family, config, Target(encoding=encoding))
            result = ENCODINGS[encoding].encode(request)
        except (RopeconvError, RecipeError):
            continue
        yield from (MatrixCell(family.name, writing, verdict) for verdict in result.verdicts)


def counts(cells: Iterable[MatrixCell]) -> dict[str, int]:
    """How many cells are known by execution ("run"), from the source ("read"), and not at all ("unknown")."""
    found = Counter(cell.verdict.grade or "unknown" for cell in cells)
    return {grade: found[grade] for grade in ("run", "read", "unknown")}


def letters(cells: Iterable[MatrixCell]) -> str:
    """One family in one row, for display.

    A letter for each way to write RoPE that is exact, a dot for one that is not; "-" where there is no such model and
    "?" where nobody looked.
    """
    found = {cell.writing: cell.verdict.status for cell in cells}
    if set(found.values()) <= {"unsupported"}:
        return "-"
    if set(found.values()) <= {"unknown"}:
        return "?"
    return "".join(LETTERS[name] if found.get(name) == "exact" else "." for name in METHODS)


LETTERS = {"theta": "T", "linear": "L", "llama3": "3", "yarn": "Y", "factors": "F"}
