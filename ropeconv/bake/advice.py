"""Compares the methods that reach a length.

The evidence about them (`evidence.toml`) decides first, then their schedules. Read `advise` first.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from ..convert.encoding import DEFAULT_RUNTIMES, ENCODINGS, EncodeRequest
from ..convert.target import Target
from ..errors import UnsupportedBake, UsageError
from ..formats.jsontext import JsonObject
from ..inspection.inspection import Inspection, inspect_source
from ..inspection.receipts.receipt import FineTuningRecord
from ..inspection.support import UNREAD, by_runtime, support
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
from ..rope.methods.interpolation import YarnMethod
from ..rope.methods.method import REGISTRY, LengthMethod, Method, ScaledMethod
from ..rope.methods.vectors import AsIs, Piecewise
from ..rope.recipe import Recipe, flags, total_factor
from ..rope.schedule import IN_FLOAT32, Schedule
from ..rope.spec import RopeSpec
from ..rope.summary import Summary, SummaryTable
from ..runtimes.gguf_readers import find_any, reader_names
from ..runtimes.read_config import read_spec
from ..runtimes.runtime import GOOD, LLAMA_CPP, canonical
from ..runtimes.verdict import Verdict
from .apply import make_plan
from .evidence import (
    Study,
    recommendation_of,
    studies_of,
    study_for,
    trained_scaling,
    weak_study_for,
)
from .fine_tuning import fine_tuning_for
from .plan import Plan
from .start import (
    complete_recipe,
    has_fixed_attention_factor,
    inherit_settings,
    keeps_every_frequency,
    nothing_to_extend,
    refuse_undeclared,
)

CRITERION = (
    "what can be written; then the unchanged RoPE of a model whose layers that rotate see windows"
    " only, the recommendation of the publisher, or the scaling that the model was trained with;"
    " then the unchanged RoPE where a longer context has no new angle; then measured to work"
    " without training, by the bar, before those about which too few questions were asked; then"
    " measured at all, at this length or nearest to it, on a model with windows in most layers if"
    " this one has them, on the largest model first; then the lower loss, to hundredths of a nat,"
    " and for equal ones more runtimes that compute it; methods without a measurement by their"
    " loss on models that lose little without any, then by fewer dimensions outside the trained"
    " angles, then the longer effective length, then the smaller change of the pairs that complete"
    " a period"
)


@dataclass(frozen=True)
class Standing:
    """How a method did beside others."""

    signs: dict[str, float] = field(default_factory=dict)
    """By the name of each other method, the mean over studies.

    1 where this one was better, -1 where it was worse, 0 where that is not decided.
    """

    studies: tuple[Study, ...] = ()
    """The studies that count."""

    @property
    def score(self) -> float:
        """The mean of the signs; -2, below all others, for a method that was not measured."""
        return mean(self.signs.values()) if self.signs else -2.0

    def __str__(self) -> str:
        """Return the comparison in words: `better than 3 of 5`."""
        if not self.signs:
            return "not measured"
        better = sum(sign > 0 for sign in self.signs.values())
        return f"better than {better} of {len(self.signs)}"


def compare_method(name: str, factor: float, fine_tuned: bool, on_top: str = "") -> Standing:
    """Compare a method with all other methods, by the losses that published studies measured.

    A study has the losses of several methods on one model that is extended by one factor. In the
    result, the signs {"linear": 1.0, "ntk": -0.5} mean that the method was better than linear in
    all studies, and mostly worse than NTK. The result also has the studies that were used.

    Args:
        name: The name of the method.
        factor: The wanted length over the trained length. Only the studies with the nearest factor
            count.
        fine_tuned: Whether the model is fine-tuned with the method. Studies with fine-tuning are
            preferred then, and studies without fine-tuning otherwise.
        on_top: The kind of the scaling that the model was trained with and keeps, such as "yarn".
            Empty for a model without scaling.
    """
    signs: dict[str, float] = {}
    used: dict[tuple[str, float, str], Study] = {}
    for other in REGISTRY:
        if other == name:
            continue
        # Two studies have different models and texts, so their losses cannot be compared. Only a
        # study with the losses of both methods counts.
        with_both = []
        for study in studies_of(on_top):
            losses = study.beyond  # by method, such as {"linear": 2.91, "yarn": 2.52}
            if name in losses and other in losses:
                with_both.append(study)

        # for a fine-tuned model, studies with fine-tuning if there are any
        with_same_training = [study for study in with_both if study.fine_tuned == fine_tuned]
        without_training = [study for study in with_both if not study.fine_tuned]
        comparable = with_same_training or without_training
        if not comparable:
            continue

        # `sign` is 1 where `name` has the better loss, -1 where `other` has it, and 0 where the
        # study cannot decide
        nearest = _with_nearest_factor(comparable, factor)
        signs[other] = mean(study.sign(name, other) for study in nearest)
        for study in nearest:
            used[study.source, study.factor, study.on_top] = study
    return Standing(signs, tuple(used.values()))


def _with_nearest_factor(studies: list[Study], factor: float) -> list[Study]:
    """Return the studies whose factor is nearest, in ratio, to the given factor."""
    distances = [abs(math.log(study.factor / factor)) for study in studies]
    limit = min(distances) + 1e-9
    return [study for study, far in zip(studies, distances, strict=True) if far <= limit]


@dataclass(frozen=True)
class FormatAdvice:
    """The planned output of one format."""

    encoding: str
    """The encoding; empty where the format cannot hold the schedule."""

    verdicts: tuple[Verdict, ...]
    """The support of each runtime."""

    reason: str = ""
    """Why it cannot hold the schedule, or empty."""

    @property
    def loading(self) -> int:
        """How many runtimes can load the model in their newest version."""
        return sum(status not in UNREAD for status in self._newest_statuses)

    @property
    def supporting(self) -> int:
        """How many runtimes support the output in their newest version."""
        return sum(status in GOOD for status in self._newest_statuses)

    @property
    def _newest_statuses(self) -> list[str]:
        """The support of the newest version of each runtime."""
        return [versions[-1].status for versions in by_runtime(self.verdicts).values()]

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        rows = [verdict.to_dict() for verdict in self.verdicts]
        return {"encoding": self.encoding or None, "runtimes": rows, "reason": self.reason or None}


@dataclass(frozen=True)
class MeasuredMethod:
    """The numbers of a study about a method, without training."""

    study: Study
    """The study."""

    method: str
    """The name of the method."""

    wanted: float = 1.0
    """The wanted length over the trained one."""

    has_same_layers: bool = True
    """Whether most layers have a window in both the measured model and the wanted one, or in
    neither."""

    @property
    def covered(self) -> float:
        """The factor up to which it was measured, or the wanted one where that is smaller."""
        return self.wanted if self.study.reaches(self.wanted) else self.study.factor

    @property
    def model(self) -> str:
        """The model and the factor: `SmolLM2-135M at 4x`."""
        return f"{self.study.short_model} at {self.study.factor:g}x"

    @property
    def lost(self) -> float:
        """The loss at the length minus that of the unchanged model at its trained length."""
        return self.study.lost[self.method]

    @property
    def price(self) -> float | None:
        """The increase of the loss within the trained length by the method, in nats per token."""
        return self.study.inside.get(self.method)

    @property
    def loss_inside(self) -> float | None:
        """The loss at the trained length, in nats per token."""
        if self.study.start is None or self.price is None:
            return None
        return self.study.start + self.price

    @property
    def loss_beyond(self) -> float | None:
        """The loss at the length of the study, in nats per token."""
        return None if self.study.start is None else self.study.start + self.lost

    @property
    def retrieval(self) -> tuple[float, float, float] | None:
        """Hidden facts that were found, in percent, and the ends of the interval of 95 %.

        None where they were not measured.
        """
        study = self.study
        if self.method not in study.retrieval:
            return None
        return study.retrieval[self.method], study.low[self.method], study.high[self.method]

    def cells(self) -> tuple[str, str, str, str, str]:
        """The losses at both lengths, the price, the retrieval and the model, for a table.

        Such as ("2.31", "2.48", "+0.02", "94 % (88-97)", "Qwen2.5-0.5B"); "-" where a number is not
        known.
        """
        decimals = DECIMALS_OF_LOSS
        inside = "-" if self.loss_inside is None else f"{self.loss_inside:.{decimals}f}"
        beyond = "-" if self.loss_beyond is None else f"{self.loss_beyond:.{decimals}f}"
        price = "-" if self.price is None else f"{self.price:+z.{decimals}f}"
        found = "-"
        if self.retrieval is not None:
            share, low, high = self.retrieval
            found = f"{share:.0f} % ({low:.0f}-{high:.0f})"
        return inside, beyond, price, found, self.model

    def to_dict(self) -> JsonObject:
        """Return the numbers as JSON-ready data. Losses are in nats per token."""
        # the share of the hidden facts that were found, in percent, and its 95 % interval
        share, low, high = self.retrieval or (None, None, None)
        return {
            "model": self.study.model,
            "factor": self.study.factor,
            # the loss of the model with the method, at its trained length and at the new length
            "loss_inside": self.loss_inside,
            "loss_beyond": self.loss_beyond,
            # those two losses, each minus the loss of the unchanged model at its trained length
            "price": self.price,
            "lost": self.lost,
            "retrieval": share,
            "retrieval_low": low,
            "retrieval_high": high,
            "texts": self.study.texts,
            "questions": self.study.questions,
        }


DECIMALS_OF_LOSS = 2
"""Decimals of the losses in tables, to which methods are ordered by them."""
NOT_DECIDED = "not decided"
"""Too few questions were asked to say whether a method works without training."""
NO_NEW_ANGLE = "no new angle"
"""Why the unchanged RoPE comes first, in a model whose layers that rotate see windows only."""
NOT_MEASURED = ("-", "-", "-", "-", "not measured")
"""The cells of a method that was not measured."""


@dataclass(frozen=True)
class Advice(Summary):
    """One method at the wanted length."""

    recipe: Recipe
    """The method with its parameters, and the modifiers for this model and length."""

    schedule: Schedule
    """The schedule of the model."""

    profile: Profile
    """Numbers about the schedule, compared with what was trained."""

    fine_tuning: FineTuningRecord
    """The training that the method needs at this length."""

    writings: dict[str, FormatAdvice]
    """The planned output per format."""

    command: str
    """The command that bakes it."""

    replace: bool = False
    """Whether it needs `--replace`."""

    out: str = ""
    """The name of its output."""

    recommended: str = ""
    """The source that puts it before methods that were measured to be better; else empty."""

    standing: Standing = field(default_factory=Standing)
    """The comparison with other methods that were measured beside it."""

    measured: MeasuredMethod | None = None
    """The measurement; None where nothing was measured."""

    weak: MeasuredMethod | None = None
    """A measurement on a model that loses little without any method: it gives methods that no other
    model measured their order, and judges none. None where there is a better one."""

    @property
    def method(self) -> Method:
        """The method with its parameters."""
        return self.recipe.method

    @property
    def sentence(self) -> str:
        """The evidence on the method at this length, in words."""
        training = f"it {self.fine_tuning.need}"
        if self.works_untuned:
            training = "it works without training"
        elif self.fine_tuning.level == "undecided":
            training = "whether it works without training is not decided"
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
            "without_training": self.without_training,
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
            shown.append(
                SummaryTable(
                    name="writings", columns=("support", "newest versions"), rows=rows, title=title
                )
            )
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
        if isinstance(self.method, AsIs):
            return self.method.flag()
        if self.recipe.on_top:
            return f"{self.method.command} --on-top"
        return self.method.command

    @property
    def basis(self) -> str:
        """The reason for its place, in a few words."""
        if not self.writable:
            return "cannot be written"
        if self.recommended and isinstance(self.method, AsIs):
            return NO_NEW_ANGLE
        if self.recommended and self.recipe.on_top:
            return "its trained scaling"
        if self.recommended:
            return "its publisher"
        if self.weak is not None:
            return f"ordered by {self.weak.model}"
        if self.measured is None:
            return "not measured"
        return f"measured on {self.measured.model}"

    @property
    def without_training(self) -> str:
        """Whether it works without training, for a table.

        One of "yes", "no", "not decided" (too few questions were asked), "not judged" (the measured
        model makes too little use of its context to judge methods, or no questions were asked that
        it answers) and "not measured".
        """
        if self.works_untuned:
            return "yes"
        if self.fine_tuning.level == "undecided":
            return NOT_DECIDED
        if self.measured is None:
            return "not measured"
        # "met", "undecided" or "missed" by the loss and the answers in the study; None where the
        # study cannot judge methods
        bar_result = self.measured.study.compare_with_bar(self.method.name)
        if bar_result is None:
            return "not judged"
        return "no"  # also for "met": the study then has a shorter context than the wanted one

    @property
    def rank(self) -> tuple[Any, ...]:
        """The key by which methods are sorted, the best method first.

        Methods that can be written come first. Then come recommended methods, methods that work
        without training, and measured methods. Methods that are equal in all this are sorted by
        their loss, and at last by numbers about their frequencies.
        """
        # The effective length ends before the first distance at which the sum of the cosines is
        # negative (a violation). It counts only up to the wanted length.
        effective_length = self.schedule.context
        first_violation = self.profile.reach.first_violation
        if first_violation is not None:
            effective_length = min(first_violation - 1, effective_length)

        # The loss of the method in a study. `weak` is a study of a model that hardly needs a
        # method. Losses of two models, or at two factors, cannot be compared, so the factor, the
        # layers and the trained length of the study are compared before the loss.
        measured_factor = 0.0
        has_same_layers = True
        trained_length = 0
        lost = 0.0
        runtimes = 0
        measurement = self.measured or self.weak
        if measurement is not None:
            measured_factor = measurement.covered  # the factor up to which it was measured
            has_same_layers = measurement.has_same_layers
            trained_length = measurement.study.trained
            lost = round(measurement.lost, DECIMALS_OF_LOSS)
            # of methods whose losses are equal in the table, what most runtimes compute is better
            runtimes = sum(writing.supporting for writing in self.writings.values())

        # 0: needs no training, 1: not decided, 2: needs training
        training = 2
        if self.works_untuned:
            training = 0
        elif self.fine_tuning.level == "undecided":
            training = 1

        # False sorts before True and small numbers before large ones, so what is good is negated
        keeps_rope = isinstance(self.method, AsIs)
        by_evidence = (
            not self.writable,
            not self.recommended,
            not keeps_rope,
            training,
            self.measured is None,
            -measured_factor,
            not has_same_layers,
            -trained_length,
            lost,
            -runtimes,
        )
        by_frequencies = (
            self.profile.outside,  # the number of dimensions with angles that training did not have
            -effective_length,
            self.profile.fast_change,  # the change of pairs that complete a period in training
        )
        # the name comes last, so that no two keys are equal
        return (*by_evidence, *by_frequencies, self.method.name)

    def to_dict(self) -> JsonObject:
        """Return the method, its evidence and its outputs as JSON-ready data.

        The keys are public: within one version of the schema no key is removed or renamed.
        """
        return {
            "method": self.method.name,
            "recipe": replace(self.recipe, context=self.schedule.context).to_dict(),
            "command": self.command,
            "context": self.schedule.context,
            "attention_factor": self.schedule.attention_factor,
            **self.profile.to_dict(),
            # training: true or false; a word for a table, such as "yes" or "not decided"; the level
            # of fine-tuning with its reason; and what the author of the method says about it
            "works_untuned": self.works_untuned,
            "without_training": self.without_training,
            "fine_tuning": msgspec.to_builtins(self.fine_tuning),
            "finetuning_note": self.method.finetuning_note,
            # why the method has its place in the list: in a few words, the source of a
            # recommendation, and the numbers of a study
            "basis": self.basis,
            "recommended": self.recommended or None,
            "evidence": self.measured.to_dict() if self.measured else None,
            # by the name of another method: 1 where this method was better, -1 where it was worse
            "compared": self.standing.signs,
            "studies": [msgspec.to_builtins(study) for study in self.standing.studies],
            # by format, "safetensors" or "gguf": the encoding, and the support of each runtime
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
    runtimes: Sequence[str] = (),
) -> ReachingMethods:
    """Compare every method that reaches a length.

    A model that counts as trained with its scaling keeps it, and is judged from that training; any
    other scaled model is judged from its unscaled RoPE.

    Args:
        source: The model.
        context: The length in tokens.
        outputs: Formats that are planned; None for all that the model can have.
        inspection: The inspection of the model; None to inspect it here.
        runtimes: The runtimes that must compute an output, as `--runtime` names them. A method that
            one of these runtimes does not compute cannot be written.

    Raises:
        UsageError: The context is not longer than the trained or the declared context.
        RecipeError: A runtime is unknown.
        RopeconvError: No layer of the model sees the whole context, or it declares less than its
            scaling covers.
    """
    # the RoPE from which all methods start
    inspection = inspection or inspect_source(source)
    training = why_scaling_is_kept(inspection)
    keeps_scaling = bool(training)
    if keeps_scaling:
        refuse_undeclared(inspection)
        start = inspection.spec
    else:
        start = inspection.first_spec.unscaled()

    # whether any method can extend the model to the length
    longest = max(start.context, inspection.spec.context)
    if context <= longest:
        word = "trained" if longest == start.context else "declared"
        raise UsageError(
            f"--context {context} is within the {word} {longest} tokens; give a longer one"
        )
    obstacle = nothing_to_extend(inspection, context)
    if obstacle:
        raise RopeconvError(f"{source.reference} cannot be extended: {obstacle}")

    # First without options of the output. If no method can be written so, again with options such
    # as --runtime with which one can; the commands then name them.
    wanted: dict[str, Any] = {}
    if runtimes:
        wanted = {"runtimes": tuple(runtimes)}
        for name in runtimes:
            find_any(name)  # raises for an unknown one
        if outputs is None and not isinstance(source, GgufSource):
            outputs = ("gguf",) if _for_gguf(wanted) else ("safetensors",)
    advise_with = partial(_advise_on_methods, source, inspection, start, context, training, outputs)
    advice = advise_with(wanted)
    is_any_writable = any(row.writable for row in advice.methods)
    if is_any_writable or wanted or not advice.methods:
        return advice
    needs = _needs_of_output(source, advice.methods)
    if not needs:
        return advice
    return advise_with(needs)


def _advise_on_methods(
    source: Source | GgufSource,
    inspection: Inspection,
    start: RopeSpec,
    context: int,
    training: str,
    outputs: Sequence[Format] | None,
    needs: Mapping[str, Any],
) -> ReachingMethods:
    """Return advice on every method that fits the model and the length, the best method first.

    Methods that do not fit are returned too, each with the reason: {"llama3": "..."}. Methods with
    a parameter that does not follow from the length, such as a file of factors, are left out.

    Args:
        source: The model.
        inspection: The inspection of the model.
        start: The RoPE that the methods start from.
        context: The length in tokens.
        training: A sentence on why the scaling of the model counts as trained. Methods are put on
            top of such a scaling. Empty for a model whose scaling is replaced.
        outputs: Formats that are planned; None for all that the model can have.
        needs: Options of the output without which no method can be written.
    """
    rows = []
    reasons_by_method = {}  # why a method does not fit
    keeps_scaling = bool(training)
    offers_as_is = _needs_no_method(inspection, start, keeps_scaling)

    for name, method_class in REGISTRY.items():
        try:
            if method_class is AsIs and offers_as_is:
                method: Method | None = AsIs()
            else:
                method = _method_for(method_class, start, context, on_top=keeps_scaling)
            if method is None:
                continue
            row = _advice(source, inspection, start, method, context, training, outputs, needs)
        except RecipeError as problem:
            reasons_by_method[name] = str(problem)
            continue

        is_unchanged = row.schedule.keeps_frequencies(start.current())
        if is_unchanged and method_class is not AsIs:
            reasons_by_method[name] = keeps_every_frequency(method, start)
        else:
            rows.append(row)
    rows.sort(key=lambda row: row.rank)
    return ReachingMethods(rows, passed_over=reasons_by_method)


def _needs_no_method(inspection: Inspection, start: RopeSpec, keeps_scaling: bool) -> bool:
    """Whether no angle at a longer context is new to a model, so that --as-is is offered.

    --as-is declares a longer context and keeps the RoPE.

    Args:
        inspection: The inspection of the model.
        start: The RoPE that the methods start from.
        keeps_scaling: Whether that is a scaling that counts as trained.
    """
    # a scaling that somebody added without training would be kept too, also a dynamic one, which
    # changes nothing within the trained context
    if inspection.spec.scaled != start.scaled:
        return False
    if not inspection.spec.current().computes_same(start.current(), IN_FLOAT32):
        return False

    # Mistral 7B v0.1 and Llama 4: the layers that rotate see windows within the trained context
    if inspection.spec.sees_only_windows(start.context):
        return True
    # Gemma 4: every pair of dimensions makes a full turn within the trained context
    return not keeps_scaling and start.fewest_turns >= 1


def _replaces_scaling(recipe: Recipe) -> bool:
    """Whether a recipe is written in place of a scaling that the model may have."""
    return not recipe.on_top and not isinstance(recipe.method, AsIs)


def _needs_of_output(source: Source | GgufSource, rows: Sequence[Advice]) -> dict[str, Any]:
    """Return options of the output with which a method can be written; empty if no options help.

    For a model that vLLM loads and transformers does not load, it is {"runtimes": ("vllm",)}.
    Another example is {"allow_untested": True}.

    Args:
        source: The model.
        rows: Advice on methods, none of which can be written without options.
    """
    # another runtime, then an untested runtime, then both; the first options that help are returned
    candidates: list[dict[str, Any]] = []
    for name in DEFAULT_RUNTIMES:
        candidates.append({"runtimes": (name,)})
    candidates.append({"allow_untested": True})
    for name in DEFAULT_RUNTIMES:
        candidates.append({"runtimes": (name,), "allow_untested": True})

    for options in candidates:
        for row in rows:
            recipe = replace(row.recipe, context=row.schedule.context)
            target = Target(replace=_replaces_scaling(recipe), **options)
            try:
                make_plan(source, recipe, target)
                return options
            except UnsupportedBake:  # not with these options
                continue
            except RopeconvError:  # the source itself is refused, whatever the options are
                return {}
    return {}


def _for_gguf(needs: Mapping[str, Any]) -> bool:
    """Whether options of a target name a runtime that reads GGUF files."""
    readers = (LLAMA_CPP, *reader_names())
    names = [canonical(name).partition("@")[0] for name in needs.get("runtimes", ())]
    return any(name in readers for name in names)


def _flags_of_target(needs: Mapping[str, Any]) -> list[str]:
    """The words of a command line for the options that `_needs_of_output` gives."""
    words = []
    for name in needs.get("runtimes", ()):
        words += ["--runtime", name]
    if needs.get("allow_untested"):
        words.append("--allow-untested")
    return words


def why_scaling_is_kept(inspection: Inspection) -> str:
    """Return that the scaling of a model counts as trained, in words; methods then keep it.

    Empty where they do not keep it. Methods for an output of ropeconv start from its first source,
    unless the output has the trained scaling of that one, made wider.
    """
    first = inspection.first
    if first is not None and first.form.kind != inspection.spec.form.kind:
        return ""
    return trained_scaling(inspection)


def _method_for(
    method_class: type[Method], start: RopeSpec, context: int, on_top: bool
) -> Method | None:
    """Return the method of a class with the parameter that reaches a context.

    For a model of 32k tokens, YaRN to 128k is `--yarn 4`. YaRN to 150k is `--yarn 150k`, which is
    easier to read than the factor 4.6875.

    Args:
        method_class: The class of the method, such as YarnMethod.
        start: The RoPE of the model before the method is applied.
        context: The context to reach, in tokens.
        on_top: Whether the model was trained with a scaling, on top of which the method is put.

    Returns:
        The method; None where no single parameter leads to a context, as for a file of factors.

    Raises:
        RecipeError: Where the method does not fit.
    """
    # without a scaling: a factor with at most two decimals, else the length
    if not on_top:
        method = method_class.for_context(start, context)
        factor = context / start.context
        has_two_decimals = round(factor, 2) == factor
        is_allowed = factor <= LARGEST_FACTOR
        if isinstance(method, LengthMethod) or (has_two_decimals and is_allowed):
            return method
        return _write_as_length(method, context)

    # on top of a scaling: always the length
    if method_class is ThetaBound:
        raise RecipeError(
            "--theta-bound is for training with another base; it does not go on top of a trained"
            " scaling"
        )
    method = _method_on_top(method_class, start, context)
    if isinstance(method, LengthMethod):  # such as --theta-for 128k
        return replace(method, target=context)
    return _write_as_length(method, context)


def _method_on_top(method_class: type[Method], start: RopeSpec, context: int) -> Method | None:
    """Return the method of a class that widens a trained scaling, so that it reaches a context.

    A model with a scaling from 32k to 128k needs the factor 2 to reach 256k.

    Args:
        method_class: The class of the method, such as YarnMethod.
        start: The RoPE with the trained scaling, which declares 128k in the example.
        context: The context to reach, in tokens.
    """
    # `for_context` divides by the length before the scaling. Of 32k, the factor 2 is 64k.
    length_before_scaling = start.original_context
    target_before_scaling = round(context * length_before_scaling / start.context)
    return method_class.for_context(start.unscaled(), target_before_scaling)


def _write_as_length(method: Method | None, context: int) -> Method | None:
    """Return a method with a length in place of its factor: `--yarn 150k` for `--yarn 4.6875`.

    A method without a factor is returned unchanged, and so is any where the length is a number that
    the command line would read as a factor (below 1,024).
    """
    length = format_tokens(context)
    if not is_length(length):
        return method
    if isinstance(method, ScaledMethod):
        return replace(method, factor=length)
    if isinstance(method, Piecewise):
        # its parameter is written FACTOR@PAIR, such as "8@44": two bases meet at pair 44
        _, split = method.parts()
        return Piecewise(f"{length}@{split}")
    return method


def _recipe(
    inspection: Inspection, start: RopeSpec, method: Method, context: int, on_top: bool
) -> Recipe:
    """Return the recipe of a method for a length, with the other options that it needs there.

    Such as `--yarn 4 --attention-factor 1 --context 100k`.

    Args:
        inspection: The inspection of the model.
        start: The RoPE that the method starts from.
        method: The method with its factor, such as `--yarn 4`.
        context: The length in tokens.
        on_top: Whether the method is put on top of a trained scaling.
    """
    recipe = Recipe(method, on_top=on_top)
    attention_factor = _required_attention_factor(recipe, inspection, start, context)
    if attention_factor is not None:
        recipe = replace(recipe, attention_factor=attention_factor)

    # --context is needed where the method alone would give another length, and where the output is
    # to declare less than the model does
    reaches_context = recipe.schedule(start).context == context
    is_shorter = context < inspection.spec.context
    if is_shorter or not reaches_context:
        recipe = replace(recipe, context=context)
    return recipe


def _required_attention_factor(
    recipe: Recipe, inspection: Inspection, start: RopeSpec, context: int
) -> float | None:
    """Return the attention factor that a recipe must give; None where the recipe need not give it.

    Args:
        recipe: The method, without other options.
        inspection: The inspection of the model.
        start: The RoPE that the method starts from.
        context: The length in tokens.
    """
    # A method on top of LongRoPE, as in Phi-3: runtimes derive the attention factor from the
    # declared context over the trained context.
    form = start.form
    if recipe.on_top and isinstance(form, LongRope):
        factor = context / form.original_context
        attention_factor = longrope_attention_factor(factor, form.original_context)
        return float(f"{attention_factor:.9g}")  # the command line has 9 digits

    # YaRN has an attention factor, 0.1 ln(factor) + 1 by default. Some models were trained with
    # YaRN and are computed with one fixed attention factor, such as 1 for DeepSeek V4.
    is_yarn = isinstance(recipe.method, YarnMethod)
    if recipe.on_top or not is_yarn or not has_fixed_attention_factor(inspection):
        return None
    # Hunyuan: YaRN with the settings of the model (mscale) gives the fixed factor
    schedule = inherit_settings(recipe, inspection).schedule(start)
    if schedule.attention_factor == start.attention_factor:
        return None
    return start.attention_factor


def _plan_each_format(
    source: Source | GgufSource,
    recipe: Recipe,
    outputs: Sequence[Format] | None,
    needs: Mapping[str, Any],
) -> tuple[dict[str, FormatAdvice], Plan | None]:
    """Plan an output in each format, to see which formats can hold a method.

    Args:
        source: The model.
        recipe: The method and its modifiers.
        outputs: The formats; None for all that the model can have.
        needs: Options of the output, such as {"runtimes": ("vllm",)}. They are used only for the
            format that these runtimes read.

    Returns:
        By format, the encoding and the runtimes that support it, or the reason why the format
        cannot hold the method: {"safetensors": FormatAdvice("native", verdicts), "gguf":
        FormatAdvice("", (), "...")}. The second value is the plan of the first format that can hold
        the method; None where no format can.
    """
    # a checkpoint can become a checkpoint or a GGUF file, and a GGUF file only another one
    formats: Sequence[Format] = ("safetensors", "gguf")
    if outputs is not None:
        formats = outputs
    elif isinstance(source, GgufSource):
        formats = ("gguf",)

    format_of_needs = "gguf" if _for_gguf(needs) else "safetensors"

    advice_by_format: dict[str, FormatAdvice] = {}
    first_plan = None
    for name in formats:
        options = needs if name == format_of_needs else {}
        try:
            target = Target(to=name, replace=_replaces_scaling(recipe), **options)
            plan = make_plan(source, recipe, target)
        except RopeconvError as problem:
            advice_by_format[name] = FormatAdvice(encoding="", verdicts=(), reason=str(problem))
            continue
        advice_by_format[name] = FormatAdvice(plan.result.encoding, plan.result.verdicts)
        if first_plan is None:
            first_plan = plan
    return advice_by_format, first_plan


def _advice(
    source: Source | GgufSource,
    inspection: Inspection,
    start: RopeSpec,
    method: Method,
    context: int,
    training: str,
    outputs: Sequence[Format] | None,
    needs: Mapping[str, Any],
) -> Advice:
    """Advice on a method: its schedule, its outputs, its evidence, and the command that bakes it.

    Args:
        source: The model.
        inspection: The inspection of the model.
        start: The RoPE that the method starts from.
        method: The method with its parameter.
        context: The length in tokens.
        training: Why the scaling of the model is kept (`why_scaling_is_kept`), so that the method
            is put on top of it; empty where the method replaces it.
        outputs: Formats that are planned; None for all that the model can have.
        needs: Options of the target of a checkpoint, without which none can be written.
    """
    # the recipe, the formats that can hold it, and the training that it needs
    on_top = bool(training)
    trained = inspection.first_spec if on_top else start
    factor = context / trained.context
    keeps_rope = isinstance(method, AsIs)
    recipe = _recipe(inspection, start, method, context, on_top and not keeps_rope)
    planned = replace(recipe, context=context)
    writings, plan = _plan_each_format(source, planned, outputs, needs)
    if plan is not None:
        # a class like Phi-3's may declare more than the wanted length (`original_for`)
        schedule = replace(plan.schedule, context=plan.context)
    else:
        schedule = complete_recipe(planned, inspection).schedule(start)
    fine_tuning = fine_tuning_for(planned, inspection, schedule)

    # why it comes before methods that were measured to be better: its publisher recommends it, or
    # has trained the model with the same scaling, which the method only widens
    recommended = ""
    widens_scaling = on_top and total_factor(method, start) is not None
    if keeps_rope and inspection.spec.sees_only_windows(trained.context):
        recommended = (
            f"no layer that rotates sees more than {inspection.spec.visible(context):,} tokens"
            f" ({inspection.spec.window_kind}), so no angle at a longer context is new to the model"
        )
    elif widens_scaling:
        recommended = training
    elif not on_top:
        recommended = recommendation_of(method.name, inspection, start.context, factor)

    # how it did in studies, beside other methods
    kept_scaling = start.form.kind if on_top else ""
    fine_tuned = not fine_tuning.may_work_untuned
    standing = compare_method(method.name, factor, fine_tuned, on_top=kept_scaling)
    has_windows = inspection.spec.sliding_window is not None

    def measured_in(study: Study) -> MeasuredMethod:
        same_layers = study.has_same_layers(has_windows)
        return MeasuredMethod(study, method.name, factor, same_layers)

    study = study_for(method.name, factor, kept_scaling, has_windows)
    measured = None if study is None else measured_in(study)
    weak_study = weak_study_for(method.name, factor, kept_scaling, has_windows)
    weak = None
    if measured is None and weak_study is not None:
        weak = measured_in(weak_study)

    # the command: only what the user has to type
    is_scaled = inspection.extended or inspection.first_spec.scaled
    replaces = is_scaled and _replaces_scaling(recipe)
    words = list(flags(recipe) or ())
    if replaces:
        words.append("--replace")
    words += _flags_of_target(needs)
    words += source.family_words
    return Advice(
        recipe=recipe,
        schedule=schedule,
        profile=profile(schedule, trained),
        fine_tuning=fine_tuning,
        writings=writings,
        command=command_line("apply", source.reference, *words),
        replace=replaces,
        out="" if plan is None else str(plan.out),
        recommended=recommended,
        standing=standing,
        measured=measured,
        weak=weak,
    )


METHODS: dict[str, tuple[str, str]] = {
    "theta": ("ntk", "native"),
    "linear": ("linear", "native"),
    "llama3": ("llama3", "native"),
    "yarn": ("yarn", "native"),
    "factors": ("mixed", "factors"),
}
"""The method and the encoding that stand for each way to write RoPE.

Any other method is written in one of these ways.
"""


@dataclass(frozen=True)
class MatrixCell:
    """A verdict on a family."""

    family: str

    writing: str
    """The way to write RoPE, a key of METHODS."""

    verdict: Verdict

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        return {"family": self.family, "writing": self.writing, **self.verdict.to_dict()}


@cache
def matrix() -> tuple[MatrixCell, ...]:
    """Return whether each version of each runtime computes each family of models correctly.

    There is a cell for each way to write RoPE into a config.json: as a new base ("theta"), or as a
    scaling ("linear", "llama3", "yarn", "factors"). A family has no cells for a way that its class
    in transformers does not support.
    """
    # instead of a checkpoint, a config with the defaults of the family is extended to 4 times its
    # length
    factor = 4.0
    cells = []
    for family in families():
        if family.refuse:  # nothing can be baked for it
            continue
        config = sample_config(family)
        spec = read_spec(config, family)
        unscaled = spec.unscaled() if spec.scaled else spec
        # METHODS names a method and an encoding for each way: NTK for "theta", since NTK is written
        # as a new base
        for way, (method_name, encoding) in METHODS.items():
            method_class = REGISTRY[method_name]
            try:
                recipe = Recipe(method_class(factor))  # type: ignore[call-arg]
                schedule = recipe.schedule(unscaled)
                if schedule.keeps_frequencies(unscaled.current()):
                    continue  # Gemma 4, of which llama3 changes nothing
                request = EncodeRequest(
                    schedule=schedule,
                    spec=unscaled,
                    family=family,
                    config=config,
                    target=Target(encoding=encoding),
                )
                result = ENCODINGS[encoding].encode(request)
            except (RopeconvError, RecipeError):  # the family does not support this way
                continue
            cells += [MatrixCell(family.name, way, verdict) for verdict in result.verdicts]
    return tuple(cells)


def counts(cells: Iterable[MatrixCell]) -> dict[str, int]:
    """Return how many cells are known by execution, from the source, and not at all.

    The keys are "run", "read" and "unknown".
    """
    grades = Counter(cell.verdict.grade or "unknown" for cell in cells)
    return {grade: grades[grade] for grade in ("run", "read", "unknown")}


def letters(cells: Iterable[MatrixCell]) -> str:
    """Return the cells of a family in one row, for display.

    In "TL.Y.", a letter stands for a way to write RoPE that the runtime computes exactly, and a dot
    for any other way. The row is "-" where the runtime does not have the model, and "?" where
    nothing was tested.

    Args:
        cells: The verdicts of one version of a runtime, one for each way (key of METHODS).
    """
    status_by_way = {cell.writing: cell.verdict.status for cell in cells}
    statuses = set(status_by_way.values())
    if statuses <= {"unsupported"}:
        return "-"
    if statuses <= {"unknown"}:
        return "?"
    row = ""
    for way in METHODS:
        is_exact = status_by_way.get(way) == "exact"
        row += LETTERS[way] if is_exact else "."
    return row


LETTERS = {"theta": "T", "linear": "L", "llama3": "3", "yarn": "Y", "factors": "F"}
