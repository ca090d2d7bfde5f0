"""Compares the methods that reach a length: by what is known of them (`evidence.toml`), then by
their schedules.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from ..convert.encoding import ENCODINGS, EncodeRequest
from ..convert.target import Target
from ..errors import UsageError
from ..formats.jsontext import JsonObject
from ..inspection.inspection import Inspection, inspect_source
from ..inspection.receipts.receipt import FineTuningRecord
from ..inspection.support import support
from ..models.config import sample_config
from ..models.gguf import GgufSource
from ..models.registry import families
from ..models.source import Source
from ..options import Format
from ..rope.bound.reach import Profile, profile
from ..rope.errors import RecipeError, RopeconvError, command_line
from ..rope.forms import LongRope, longrope_attention_factor
from ..rope.lengths import LARGEST_FACTOR, format_tokens, is_length
from ..rope.methods.bases import ThetaBound
from ..rope.methods.method import REGISTRY, LengthMethod, Method, ScaledMethod
from ..rope.methods.vectors import Piecewise
from ..rope.recipe import Recipe, flags, total_factor
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..rope.summary import Summary, SummaryTable
from ..runtimes.read_config import read_spec
from ..runtimes.verdict import Verdict
from .apply import make_plan
from .evidence import Study, recommendation_of, studies_of, trained_scaling
from .fine_tuning import fine_tuning_for
from .plan import Plan
from .start import nothing_to_extend

CRITERION = (
    "what can be written; then the recommendation of the publisher, or the scaling that the model"
    " was trained with; then known to work without fine-tuning at this factor; then measured to be"
    " better than other methods; then fewer dimensions outside the trained angles, then the longer"
    " effective length, then the smaller change of the pairs that complete a period"
)


@dataclass(frozen=True)
class Standing:
    """How a method did beside others.

    signs: by the name of each other method 1 where this one was better, -1 where worse, 0 where
    that is not decided, averaged over studies. studies: those that count.
    """

    signs: dict[str, float] = field(default_factory=dict)
    studies: tuple[Study, ...] = ()

    @property
    def score(self) -> float:
        """The mean of the signs; -2, below all others, for a method that was not measured."""
        return mean(self.signs.values()) if self.signs else -2.0

    def __str__(self) -> str:
        if not self.signs:
            return "not measured"
        return f"better than {sum(sign > 0 for sign in self.signs.values())} of {len(self.signs)}"


def standing(name: str, factor: float, fine_tuned: bool, on_top: str = "") -> Standing:
    """Compare a method with every other study that was measured beside it.

    Args:
        name: The name of the method.
        factor: The length over the trained study. For each other method, the studies nearest to it
            count.
        fine_tuned: Whether the model is fine-tuned with the method. Where no study compares two
            methods, those without fine-tuning do.
        on_top: The kind of the scaling that the model was trained with and that the method is put
            on; empty for an unscaled model. Where no study has that kind, those of other kinds
            count.
    """
    signs: dict[str, float] = {}
    used: dict[tuple[str, float, str], Study] = {}
    for other in REGISTRY:
        pool = [study for study in studies_of(on_top) if {name, other} <= study.beyond.keys()]
        pool = [study for study in pool if study.fine_tuned == fine_tuned] or [
            study for study in pool if not study.fine_tuned
        ]
        if other == name or not pool:
            continue
        distances = [abs(math.log(study.factor / factor)) for study in pool]
        nearest = [
            study
            for study, far in zip(pool, distances, strict=True)
            if far <= min(distances) + 1e-9
        ]
        signs[other] = mean(study.sign(name, other) for study in nearest)
        used |= {(study.source, study.factor, study.on_top): study for study in nearest}
    return Standing(signs, tuple(used.values()))


@dataclass(frozen=True)
class FormatAdvice:
    """The planned output of one format: its encoding and verdicts, or the reason why it cannot hold
    the schedule.
    """

    encoding: str
    verdicts: tuple[Verdict, ...]
    reason: str = ""

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        rows = [verdict.to_dict() for verdict in self.verdicts]
        return {"encoding": self.encoding or None, "runtimes": rows, "reason": self.reason or None}


@dataclass(frozen=True)
class Advice(Summary):
    """One method at the wanted length.

    Attributes:
        recipe: The method with its parameters, and the modifiers that it needs for this model and
            length.
        schedule: The schedule of the model.
        profile: Numbers about the schedule, compared with what was trained.
        fine_tuning: The training that the method needs at this length.
        writings: The planned output per format.
        command: The command that bakes it.
        replace: Whether it needs `--replace`.
        out: The name of its output.
        recommended: Why it comes before methods that were measured to be better: the source; empty
            for others.
        standing: The measurement.
    """

    recipe: Recipe
    schedule: Schedule
    profile: Profile
    fine_tuning: FineTuningRecord
    writings: dict[str, FormatAdvice]
    command: str
    replace: bool = False
    out: str = ""
    recommended: str = ""
    standing: Standing = field(default_factory=Standing)

    @property
    def method(self) -> Method:
        """The method with its parameters."""
        return self.recipe.method

    @property
    def sentence(self) -> str:
        """The evidence on the method at this length, in words."""
        if self.works_untuned:
            training = "known to work without training"
        else:
            training = f"it {self.fine_tuning.need}"
        return f"{self.flags} for {self.context:,} tokens: {self.basis}; {training}."

    @property
    def context(self) -> int:
        """The wanted length in tokens."""
        return self.schedule.context

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {
            "sentence": self.sentence,
            "command": self.command,
            "context": f"{self.context:,} tokens",
            "works_untuned": "yes" if self.works_untuned else "no",
            "writable": "yes" if self.writable else "no",
            "basis": self.basis,
            "recommended": self.recommended,
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return the support of the popular runtimes, for each format."""
        shown = []
        for name, writing in self.writings.items():
            rows = support(writing.verdicts) or [("cannot be written", writing.reason)]
            title = f"{name} as {writing.encoding}" if writing.encoding else name
            shown.append(SummaryTable("writings", ("support", "newest versions"), rows, title))
        return shown

    @property
    def works_untuned(self) -> bool:
        """Whether the method is known to work at this length without fine-tuning."""
        return self.fine_tuning.works_untuned

    @property
    def writable(self) -> bool:
        """Whether some format can hold it."""
        return any(not writing.reason for writing in self.writings.values())

    @property
    def flags(self) -> str:
        """The flags of the method, as on a command line: `--llama3 256k --on-top`."""
        return f"{self.method.command}{' --on-top' if self.recipe.on_top else ''}"

    @property
    def basis(self) -> str:
        """The reason for its place, in a few words."""
        if not self.writable:
            return "cannot be written"
        if self.recommended:
            return "its trained scaling" if self.recipe.on_top else "its publisher"
        return str(self.standing)

    @property
    def rank(self) -> tuple[Any, ...]:
        """The key by which advice is sorted, best first, as CRITERION explains it."""
        first = self.profile.reach.first_violation
        effective = (
            self.schedule.context if first is None else min(first - 1, self.schedule.context)
        )
        known = (
            not self.writable,
            not self.recommended,
            not self.works_untuned,
            -self.standing.score,
        )
        return *known, self.profile.outside, -effective, self.profile.fast_change, self.method.name

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data, with the recipe; keys stay within a schema."""
        return {
            "method": self.method.name,
            "recipe": replace(self.recipe, context=self.schedule.context).to_dict(),
            "command": self.command,
            "context": self.schedule.context,
            "attention_factor": self.schedule.attention_factor,
            **self.profile.to_dict(),
            "works_untuned": self.works_untuned,
            "fine_tuning": msgspec.to_builtins(self.fine_tuning),
            "finetuning_note": self.method.finetuning_note,
            "basis": self.basis,
            "recommended": self.recommended or None,
            "compared": self.standing.signs,
            "studies": [msgspec.to_builtins(study) for study in self.standing.studies],
            "outputs": {name: writing.to_dict() for name, writing in self.writings.items()},
        }


class ReachingMethods(NamedTuple):
    """The methods of the registry at a length."""

    methods: list[Advice]
    """Those that reach it, sorted by CRITERION."""

    passed_over: dict[str, str]
    """The reason, by name, for each method that does not fit."""


def advise(
    source: Source | GgufSource,
    context: int,
    outputs: Sequence[Format] | None = None,
    inspection: Inspection | None = None,
) -> ReachingMethods:
    """Compare every method that reaches a length.

    A model that was trained with its scaling keeps it, and is judged from that training; any other
    scaled model is judged from its unscaled RoPE.

    Args:
        source: The model.
        context: The length in tokens.
        outputs: Formats that are planned; None for all that the model can have.
        inspection: The inspection of the model; None for one that is made here.

    Raises:
        UsageError: The context is within the trained one.
        RopeconvError: No layer of the model sees the whole context.
    """
    inspection = inspection or inspect_source(source)
    training = kept_scaling(inspection)
    start = inspection.spec if training else inspection.first_spec.unscaled()
    if context <= start.context:
        raise UsageError(
            f"--context {context} is within the trained {start.context} tokens; give a longer one"
        )
    unseen = nothing_to_extend(inspection, context)
    if unseen:
        raise RopeconvError(f"{source.reference} cannot be extended: {unseen}")
    rows = []
    passed_over = {}
    for name, kind in REGISTRY.items():
        try:
            method = _reaching(kind, start, context, on_top=bool(training))
            if method is not None:
                rows.append(_advice(source, inspection, start, method, context, training, outputs))
        except RecipeError as problem:
            passed_over[name] = str(problem)
    return ReachingMethods(sorted(rows, key=lambda row: row.rank), passed_over)


def kept_scaling(inspection: Inspection) -> str:
    """Return why methods keep the scaling of a model: how it is known to be a trained one; empty
    where they do not.

    Methods for an output of ropeconv start from its first source.
    """
    return "" if inspection.first is not None else trained_scaling(inspection)


def _reaching(kind: type[Method], start: RopeSpec, context: int, on_top: bool) -> Method | None:
    """The method with the parameter that reaches a context. start: what it starts from, over its
    whole context.
    """
    if on_top and kind is ThetaBound:
        raise RecipeError(
            "--theta-bound is for training with another base; it does not go on top of a trained"
            " scaling"
        )
    if on_top:  # to the method, the declared context is the one before the scaling
        method = kind.for_context(
            start.unscaled(), round(context * start.original_context / start.context)
        )
    else:
        method = kind.for_context(start, context)
    factor = context / start.context
    length = format_tokens(context)
    if isinstance(method, LengthMethod):
        return replace(method, target=context)
    if is_length(length) and (on_top or round(factor, 2) != factor or factor > LARGEST_FACTOR):
        if isinstance(method, ScaledMethod):
            return replace(method, factor=length)
        if isinstance(method, Piecewise):
            return Piecewise(f"{length}@{method.parts()[1]}")
    return method


def _recipe(
    inspection: Inspection, start: RopeSpec, method: Method, context: int, on_top: bool
) -> Recipe:
    """The recipe of a method for a length, with the modifiers that it needs. start: what it starts
    from.
    """
    recipe = Recipe(method, on_top=on_top)
    form = start.form
    if on_top and isinstance(form, LongRope):  # their runtimes derive it from the declared context
        attention_factor = longrope_attention_factor(
            context / form.original_context, form.original_context
        )
        recipe = replace(recipe, attention_factor=float(f"{attention_factor:.9g}"))
    if recipe.schedule(start).context != context or context < inspection.spec.context:
        recipe = replace(recipe, context=context)
    return recipe


def _writings(
    source: Source | GgufSource, recipe: Recipe, outputs: Sequence[Format] | None
) -> tuple[dict[str, FormatAdvice], Plan | None]:
    """The planned output per format, and the first of the plans; None where no format can hold the
    recipe.
    """
    known: tuple[Format, ...] = (
        ("gguf",) if isinstance(source, GgufSource) else ("safetensors", "gguf")
    )
    writings: dict[str, FormatAdvice] = {}
    first = None
    for name in known if outputs is None else outputs:
        try:
            plan = make_plan(source, recipe, Target(to=name, replace=not recipe.on_top))
        except RopeconvError as problem:
            writings[name] = FormatAdvice("", (), str(problem))
        else:
            writings[name] = FormatAdvice(plan.result.encoding, plan.result.verdicts)
            first = first or plan
    return writings, first


def _advice(
    source: Source | GgufSource,
    inspection: Inspection,
    start: RopeSpec,
    method: Method,
    context: int,
    training: str,
    outputs: Sequence[Format] | None,
) -> Advice:
    """Advice on a method. start: what it starts from. training: as `trained_scaling` returns it."""
    on_top = bool(training)
    factor = context / start.context
    form = start.form
    recipe = _recipe(inspection, start, method, context, on_top)
    planned = replace(recipe, context=context)
    writings, plan = _writings(source, planned, outputs)
    schedule = planned.schedule(start) if plan is None else plan.schedule
    need = fine_tuning_for(planned, inspection, schedule)
    if on_top:
        recommended = training if total_factor(method, start) else ""
    else:
        recommended = recommendation_of(method.name, inspection, start.context, factor)
    replaced = not on_top and (inspection.extended or inspection.first_spec.scaled)
    return Advice(
        recipe=recipe,
        schedule=schedule,
        profile=profile(schedule, start),
        fine_tuning=need,
        writings=writings,
        command=command_line(
            "apply", source.reference, *(flags(recipe) or ()), *["--replace"] * replaced
        ),
        replace=replaced,
        out="" if plan is None else str(plan.out),
        recommended=recommended,
        standing=standing(method.name, factor, not need.works_untuned, form.kind if on_top else ""),
    )


METHODS: dict[str, tuple[str, str]] = {
    "theta": ("ntk", "native"),
    "linear": ("linear", "native"),
    "llama3": ("llama3", "native"),
    "yarn": ("yarn", "native"),
    "factors": ("mixed", "factors"),
}
"""The method and the encoding that stand for each way to write RoPE; any other method is written in
one of them.
"""


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

    A family has none for a way that its stock class does not support.
    """
    cells = []
    for family in (family for family in families() if not family.refuse):
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
            cells += [MatrixCell(family.name, writing, verdict) for verdict in result.verdicts]
    return tuple(cells)


def counts(cells: Iterable[MatrixCell]) -> dict[str, int]:
    """How many cells are known by execution ("run"), from the source ("read"), and not at all
    ("unknown").
    """
    grades = Counter(cell.verdict.grade or "unknown" for cell in cells)
    return {grade: grades[grade] for grade in ("run", "read", "unknown")}


def letters(cells: Iterable[MatrixCell]) -> str:
    """One family in one row, for display.

    A letter for each way to write RoPE that is exact, a dot for one that is not; "-" for no model
    and "?" where nothing was tested.
    """
    statuses = {cell.writing: cell.verdict.status for cell in cells}
    if set(statuses.values()) <= {"unsupported"}:
        return "-"
    if set(statuses.values()) <= {"unknown"}:
        return "?"
    return "".join(LETTERS[name] if statuses.get(name) == "exact" else "." for name in METHODS)


LETTERS = {"theta": "T", "linear": "L", "llama3": "3", "yarn": "Y", "factors": "F"}
