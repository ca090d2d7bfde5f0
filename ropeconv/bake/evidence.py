"""The evidence on methods and models: studies, recommendations, and whether a scaling was trained.

`evidence.toml` has the studies and recommendations. `trained_scaling` judges a scaling by a rule:
it counts as trained unless the receipt, the card or the lengths of the model say that it is an
edit. `fine_tuning.py` and `advice.py` draw conclusions from it.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

import msgspec

from ..formats.jsontext import JsonObject
from ..formats.package_data import package_data
from ..inspection.inspection import ConfigInspection, Inspection
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.source import CARD, Source
from ..rope.forms import DynamicNtk, Yarn, temperature_attention_factor
from ..runtimes.read_config import rope_dict

BASE = "base"
"""The name of the unchanged model among methods."""

MOST_LOST = 0.2
"""The bar for "without training": the most nats per token by which a method may be above the loss
of the unchanged model at its trained length, on the same tokens."""
LEAST_FOUND = 50.0
"""The bar for "without training": the least passkeys that a method must find, in percent."""

BarResult = Literal["met", "undecided", "missed"]
"""Whether a measured method works without training, by that bar.

Undecided where it loses little enough, and LEAST_FOUND is inside the 95 % interval of its answers.
"""


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Methods that were measured on the same model and text.

    Numbers are by the name of the method; "base" is the model without one.
    """

    model: str
    """The model, with its trained context."""

    factor: float
    """The length over the trained context."""

    unit: str
    """The unit of `beyond` and `inside`."""

    n: str
    """The sample, in words."""

    source: str
    """Where the numbers are."""

    fine_tuned: bool = False
    """Whether the model was fine-tuned with each method."""

    on_top: str = ""
    """The scaling that the model was trained with, on which the methods are put."""

    higher: bool = False
    """Whether more is better."""

    trained: int = 0
    """The trained context in tokens; 0 where only `model` has it."""

    texts: int = 0
    """The number of texts; 0 where it was not published."""

    questions: int = 0
    """The number of questions about hidden facts; 0 for none."""

    start: float | None = None
    """The loss of the unchanged model at its trained length, in nats per token."""

    beyond: dict[str, float] = {}
    """The number at the length; in a study of items, minus that of the unchanged model."""

    errors: dict[str, float] = {}
    """The standard error of that difference."""

    inside: dict[str, float] = {}
    """The number within the trained context; in a study of items, minus the unchanged model."""

    lost: dict[str, float] = {}
    """The loss at the length minus that of the unchanged model at its trained length."""

    retrieval: dict[str, float] = {}
    """Right answers, in percent."""

    low: dict[str, float] = {}
    """The lower end of the interval of `retrieval`."""

    high: dict[str, float] = {}
    """The upper end of the interval of `retrieval`."""

    better: tuple[tuple[str, str], ...] = ()
    """The pairs of methods whose numbers at the length differ by the rule of `proof.py`, the better
    one first. A study without n and errors has none."""

    def sign(self, name: str, other: str) -> float:
        """Return 1 where a method is better than another one, -1 where it is worse, else 0.

        Their numbers beyond the trained context are compared.
        """
        if (name, other) in self.better:
            return 1.0
        return -1.0 if (other, name) in self.better else 0.0

    @property
    def short_model(self) -> str:
        """The name of the model without its trained context."""
        return self.model.partition(" (")[0].removesuffix("-Instruct")

    @property
    def hardly_loses_without_method(self) -> bool:
        """Whether the unchanged model hardly loses anything at the length."""
        return self.lost.get(BASE, MOST_LOST + 1) <= MOST_LOST

    def reaches(self, factor: float) -> bool:
        """Whether it is about a factor or a longer one. YaRN 4 gives some models 4.0004 times."""
        return factor <= 1.01 * self.factor

    def compare_with_bar(self, name: str) -> BarResult | None:
        """Whether a method works without training, by a bar: "met", "missed" or "undecided".

        The bar: at the new length, the loss is at most MOST_LOST (nats per token) above that of the
        unchanged model at its trained length, and at least LEAST_FOUND (percent) of the facts that
        were hidden in texts are found.

        The interval of the answers must be above LEAST_FOUND or below it as a whole: 6 of 12
        questions are 25 to 75 %, which decides nothing.

        None where its loss or answers were not measured, and where the unchanged model is within
        the bar of the loss: such a model uses its context too little to judge methods.
        """
        was_measured = name in self.lost and name in self.retrieval
        if not was_measured or self.hardly_loses_without_method:
            return None
        if self.lost[name] > MOST_LOST:
            return "missed"

        # the share of the facts that were found, in percent, and the ends of its interval, which
        # are the share itself where a study has no interval
        found = self.retrieval[name]
        lowest_found = self.low.get(name, found)
        highest_found = self.high.get(name, found)
        if lowest_found >= LEAST_FOUND:
            return "met"
        if highest_found < LEAST_FOUND:
            return "missed"
        return "undecided"

    def describe_answers(self, name: str) -> str:
        """The answers of a method in words: `6 of 12 hidden facts (95 %: 25 to 75 %)`."""
        found = self.retrieval[name]
        words = f"{found:.0f} %"
        if self.questions:
            words = f"{round(found / 100 * self.questions)} of {self.questions}"
        words += " hidden facts"
        if name in self.low and name in self.high:
            words += f" (95 %: {self.low[name]:.0f} to {self.high[name]:.0f} %)"
        return words


class Recommendation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method that the publisher of some families recommends, from a trained context up to a
    factor.
    """

    families: tuple[str, ...]
    original: int
    method: str
    factor: float
    source: str


class EvidenceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `evidence.toml`."""

    studies: tuple[Study, ...]
    recommendations: tuple[Recommendation, ...]


@cache
def evidence() -> EvidenceTable:
    """Return what is known about methods."""
    return package_data("bake/evidence.toml", EvidenceTable)


def studies_of(on_top: str) -> list[Study]:
    """The studies of unscaled models, or of models that were trained with a kind of scaling."""
    pool = [study for study in evidence().studies if bool(study.on_top) == bool(on_top)]
    return [study for study in pool if study.on_top == on_top] or pool


def study_for(
    method: str, factor: float, on_top: str = "", among: Sequence[Study] | None = None
) -> Study | None:
    """Return the study whose numbers of a method are shown, and which says if it needs training.

    A study has the losses and answers of several methods on one model, extended by one factor.

    It is the study of the model with the longest trained context, at the nearest factor that is not
    smaller than the wanted one; where all are smaller, at the largest. Studies of a model that
    hardly loses anything without a method are left out, since they say nothing about methods.

    Args:
        method: The name of the method.
        factor: The wanted length over the trained one.
        on_top: The scaling that the model was trained with and keeps; empty for none.
        among: The studies that are searched; None for all that judge methods.
    """
    if among is None:
        among = [study for study in evidence().studies if not study.hardly_loses_without_method]

    # studies of the method without training; on unscaled models, or on top of a trained scaling
    possible = []
    for study in among:
        has_scaling_alike = bool(study.on_top) == bool(on_top)
        was_measured = method in study.lost  # the loss of each method, by its name
        if has_scaling_alike and not study.fine_tuned and was_measured:
            possible.append(study)
    if not possible:
        return None

    # Studies with answers to questions are preferred, since these say more than losses.
    # `compare_with_bar` is None for a study without answers.
    with_answers = [study for study in possible if study.compare_with_bar(method) is not None]
    preferred = with_answers or possible
    # studies on top of the same kind of scaling, such as "yarn", are preferred to other kinds
    on_same_kind = [study for study in preferred if study.on_top == on_top]
    preferred = on_same_kind or preferred

    # the model with the longest trained context, and its study at the nearest factor
    longest_trained = max(study.trained for study in preferred)
    of_model = [study for study in preferred if study.trained == longest_trained]
    long_enough = [study for study in of_model if study.reaches(factor)]
    if long_enough:
        return min(long_enough, key=lambda study: study.factor)
    return max(of_model, key=lambda study: study.factor)


def weak_study_for(method: str, factor: float, on_top: str = "") -> Study | None:
    """Return a study of a method on a model that hardly needs one; None where there is none.

    Some models lose little at a longer context without any method. Their losses do not show whether
    a method works. They still show which method is better, and show it better than the frequencies
    of the methods do (`scripts/pages/regret.py`). So methods without another study are sorted by
    this one.

    Args:
        method: The name of the method.
        factor: The wanted length over the trained one.
        on_top: The scaling that the model was trained with and keeps; empty for none.
    """
    weak_studies = []
    for study in evidence().studies:
        loses_little = study.hardly_loses_without_method  # at most MOST_LOST, without any method
        # pairs such as ("yarn", "linear"), the better method first; without any, all differences
        # between methods may be chance
        decides_pairs = bool(study.better)
        if loses_little and decides_pairs:
            weak_studies.append(study)
    return study_for(method, factor, on_top, among=weak_studies)


def untuned_rank(result: BarResult | None) -> int:
    """Return the rank of a result without training: 0 is the best, for a method that met the bar.

    It is 1 for "undecided", and 2 for a method that missed the bar or was not measured.
    """
    if result == "met":
        return 0
    return 1 if result == "undecided" else 2


class Untuned(msgspec.Struct, frozen=True):
    """Whether a method works without training at a factor, by the bar."""

    result: BarResult | None
    """None where it was not measured, or on a model that judges nothing."""

    reason: str
    """The numbers, in words."""

    finds_some: bool = False
    """Whether it found some of the hidden facts."""


def works_untuned(method: str, factor: float, on_top: str = "") -> Untuned:
    """Return whether a method works without training, by what a study measured, and the reason.

    A method must stay within a bar: lose at most MOST_LOST nats per token, and find LEAST_FOUND
    percent of the facts that were hidden in texts. The reason is such as "on Qwen2.5-0.5B at 4
    times, yarn loses 0.05 nats and finds 94 % of hidden facts; the bar is 0.2 nats and 50 %".

    Args:
        method: The name of the method.
        factor: The wanted length over the trained one.
        on_top: The scaling that the model was trained with and keeps; empty for none.
    """
    study = study_for(method, factor, on_top)
    if study is None:
        place = f" on top of {on_top} scaling" if on_top else ""
        return Untuned(None, f"{method} was not measured without training{place}")

    loss = (
        f"on {study.short_model} at {study.factor:g} times, {method} loses"
        f" {study.lost[method]:.2f} nats"
    )
    # a model that loses hardly anything without a method cannot show what a method is worth
    if study.hardly_loses_without_method:
        return Untuned(
            None, f"{loss}, and the model without it {study.lost[BASE]:.2f}: too little to judge"
        )
    result = study.compare_with_bar(method)
    if result is None:
        return Untuned(None, f"{loss}; whether it finds hidden facts was not measured")

    loss_and_answers = f"{loss} and finds {study.describe_answers(method)}"
    was_measured_so_far = study.reaches(factor)
    if not was_measured_so_far:
        return Untuned(None, f"{loss_and_answers}; it was not measured beyond that")
    bar = f"the bar is {MOST_LOST:g} nats and {LEAST_FOUND:g} %"
    finds_something = study.retrieval[method] > 0
    return Untuned(result, f"{loss_and_answers}; {bar}", finds_something)


def recommendation_of(method: str, inspection: Inspection, trained: int, factor: float) -> str:
    """Return where the publisher of a model recommends a method; empty where nothing is known.

    Args:
        method: The name of the method.
        inspection: The inspection of the model.
        trained: The context before any scaling, in tokens.
        factor: The wanted length over that context.
    """
    for recommendation in evidence().recommendations:
        is_of_family = inspection.family_name in recommendation.families
        is_of_model = is_of_family and trained == recommendation.original
        if not is_of_model or method != recommendation.method:
            continue
        if factor <= recommendation.factor:
            return recommendation.source
    return ""


EDITED = re.compile(
    r"the scaling is part of .{1,60}, so no flags are needed"  # cards of ropeconv
    r"|only (the )?config(\.json|uration)? (was|is|has been) (changed|edited|modified)"
    r"|(changed|edited|modified) only (the )?config",
    re.IGNORECASE,
)
"""Sentences of model cards which say that a scaling was added without training."""
README_KEYS = frozenset(
    (
        "rope_type type factor original_max_position_embeddings rope_theta mrope_section"
        " mrope_interleaved partial_rotary_factor"
    ).split()
)
"""Keys of the block that publishers tell users to add for a longer context."""


def trained_scaling(inspection: Inspection) -> str:
    """Return why a model counts as trained with its scaling, in words; empty where it does not.

    Anybody can add a scaling to a config.json without training. So a scaling in the files of a
    model counts as trained unless there is a sign that it was added: in the receipt, the card or
    the lengths of the model (`why_edited`). Such a sign does not count where the settings of the
    scaling say themselves that it was trained.
    """
    # for an output of ropeconv, the model before counts: its own scaling was not trained
    first = inspection.first_spec
    if not first.scaled:
        return ""
    # dynamic scaling changes nothing inside the trained length, so nothing was trained with it
    if isinstance(first.form, DynamicNtk):
        return ""
    # a sign that the scaling was added later, unless the config says that it was trained, by
    # `finetuned` among the settings of the scaling
    says_it_was_trained = marked_as_trained(inspection)
    sign_of_edit = "" if says_it_was_trained else why_edited(inspection)
    if sign_of_edit:
        return ""
    return (
        f"the {first.form.kind} scaling for {first.context:,} tokens counts as trained: no receipt,"
        " card or length says that it was added later"
    )


def marked_as_trained(inspection: Inspection) -> bool:
    """Whether the settings of a model say so, as those of Yarn-Llama-2 do (`finetuned`)."""
    source = inspection.source
    if isinstance(source, GgufSource):
        return bool(source.file.get(f"{inspection.name}.rope.scaling.finetuned"))
    return bool(_settings(inspection).get("finetuned"))


def why_edited(inspection: Inspection) -> str:
    """Return the sign that a scaling was added without training, in words; empty without one.

    There are three signs: the scaling covers more tokens than the model declares; it is the very
    edit that the publisher tells users to make for longer texts; or the card says so.
    """
    # 1. The scaling covers more tokens than the model declares. A publisher who trains with a
    # scaling declares its length. A user who edits often adds only the scaling: the model still
    # declares 32,768 tokens, and YaRN with factor 4 over 32,768 covers 131,072.
    spec = inspection.first_spec
    covered = spec.covered_context  # trained context x factor
    declared = max(spec.context, _reached_length(inspection))
    # LongChat does not say its trained context, which is then computed as declared / factor; that
    # times the factor shows nothing
    trained_follows_from_factor = spec.original_context_source == "factor"
    if covered > declared and not trained_follows_from_factor:
        return (
            f"it declares {spec.context:,} tokens, and its scaling covers {covered:,}: the scaling"
            " was added without them"
        )

    # 2. the edit that the publisher recommends
    recommended = _published_edit(inspection)
    if recommended:
        return f"it is the edit of {recommended}"

    # 3. the card; that of an output of ropeconv is its own, and not that of the model before it
    source = inspection.source
    is_output = inspection.first is not None
    if isinstance(source, Source) and not is_output:
        card = source.text(CARD) or ""
        if EDITED.search(card):
            return "its card says so"
    return ""


def _published_edit(inspection: Inspection) -> str:
    """Return where the publisher tells users to add the scaling of a model; empty where nowhere.

    Qwen's cards tell users to add {"rope_type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 32768}. A scaling is that edit where it has no other keys,
    so that all other numbers are the defaults.
    """
    spec = inspection.first_spec
    form = spec.form
    if not isinstance(form, Yarn):
        return ""

    # An output of ropeconv has the keys that ropeconv writes, which say nothing about the keys that
    # the model had before.
    is_output = inspection.first is not None
    if not is_output:
        settings = {key for key, value in _settings(inspection).items() if value is not None}
        has_other_keys = not settings <= README_KEYS
        if has_other_keys:
            return ""

    # all numbers must be the defaults
    usual_factor = temperature_attention_factor(form.factor)
    has_usual_factor = abs(spec.attention_factor - usual_factor) < 1e-6
    has_usual_ramp = (form.beta_fast, form.beta_slow, form.truncate) == (32.0, 1.0, True)
    if not has_usual_factor or not has_usual_ramp:
        return ""
    return recommendation_of("yarn", inspection, form.original_context, form.factor)


def _settings(inspection: Inspection) -> JsonObject:
    """The RoPE dictionary of a config.json; empty for other models, and of its class."""
    if not isinstance(inspection, ConfigInspection) or not isinstance(inspection.source, Source):
        return {}
    family = inspection.model_family
    rope, notes = rope_dict(text_part(inspection.source.config(), family), family)
    return {} if notes else rope


def _reached_length(inspection: Inspection) -> int:
    """The max_sequence_length of Vicuna 16k and LongChat, in tokens; 0 without one."""
    if not isinstance(inspection, ConfigInspection) or not isinstance(inspection.source, Source):
        return 0
    part = text_part(inspection.source.config(), inspection.model_family)
    return int(part.get("max_sequence_length") or 0)
