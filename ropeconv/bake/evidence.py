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
"""The bar for "without training": the least hidden facts that a method must find, in percent."""

BAR = f"the bar is {MOST_LOST:g} nats and {LEAST_FOUND:g} %"
"""That bar in words."""

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

    sliding_window: int = 0
    """The tokens that most layers see, in a model with other layers that see all tokens.

    0 for any other model.
    """

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

    def has_same_layers(self, has_windows: bool) -> bool:
        """Whether its model has windows in most layers if another model does, and else not.

        Args:
            has_windows: Whether most layers of the other model see a window only, and the others
                all tokens.
        """
        return bool(self.sliding_window) == has_windows

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

        The bar: at the new length, the loss is at most MOST_LOST (nats per token) above the loss of
        the unchanged model at its trained length, and at least LEAST_FOUND (percent) of the facts
        that were hidden in texts are found.

        The interval of the answers must be above LEAST_FOUND or below it as a whole: 6 of 12
        questions are 25 to 75 %, which decides nothing.

        None where its loss was not measured, where it is within the bar and no answers were
        measured, and where the unchanged model is within the bar of the loss: such a model uses its
        context too little to judge methods.
        """
        if name not in self.lost or self.hardly_loses_without_method:
            return None
        if self.lost[name] > MOST_LOST:
            return "missed"
        if name not in self.retrieval:
            return None

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

    def finds_some(self, name: str) -> bool:
        """Whether a method found any of the hidden facts."""
        return self.retrieval.get(name, 0.0) > 0

    def describe_result(self, name: str) -> str:
        """What the bar compares, in words: `yarn loses 0.17 nats and finds 6 of 12 hidden ...`."""
        words = f"{name} loses {self.lost[name]:z.2f} nats"
        if name in self.retrieval:
            words += f" and finds {self.describe_answers(name)}"
        return words

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
    method: str,
    factor: float,
    on_top: str = "",
    has_windows: bool = False,
    among: Sequence[Study] | None = None,
) -> Study | None:
    """Return the study that shows best how a method works without training; None if none does.

    A study has the losses and answers of several methods on one model, extended by one factor. A
    study with answers is preferred; then one that covers the wanted factor, or else one at the
    largest factor; then one of a model that has windows in most layers as the wanted model does;
    then one of the model with the longest trained context. The study of this model at the smallest
    factor that covers the wanted one is returned, with answers or without.

    Args:
        method: The name of the method.
        factor: The wanted length over the trained length.
        on_top: The kind of the scaling that the model was trained with and keeps, such as "yarn";
            empty for a model without scaling.
        has_windows: Whether most layers of the model see a window only, and the others all tokens.
        among: The studies to choose from. None for all studies of models that lose much at a longer
            context without a method, since only such models show whether a method works.
    """
    if among is None:
        among = [study for study in evidence().studies if not study.hardly_loses_without_method]

    # studies of the method without training, on models with a scaling or on models without one
    needs_scaling = bool(on_top)
    possible = []
    for study in among:
        has_scaling = bool(study.on_top)
        was_measured = method in study.lost  # the loss of each method, by its name
        if has_scaling == needs_scaling and was_measured and not study.fine_tuned:
            possible.append(study)
    if not possible:
        return None

    # Studies with answers to questions are preferred, since answers say more than losses, where the
    # model needs a method at all.
    with_answers = []
    for study in possible:
        if method in study.retrieval and not study.hardly_loses_without_method:
            with_answers.append(study)
    preferred = with_answers or possible
    # studies with the same kind of scaling are preferred
    with_same_kind = [study for study in preferred if study.on_top == on_top]
    preferred = with_same_kind or preferred

    # Studies that reach the wanted factor are preferred, or else the nearest ones: at 4 times a
    # method may fail that works at twice the length.
    long_enough = [study for study in preferred if study.reaches(factor)]
    largest_factor = max(study.factor for study in preferred)
    nearest = [study for study in preferred if study.factor == largest_factor]
    preferred = long_enough or nearest
    # A method changes all layers of a Llama, and only those without a window of a Gemma 3: models
    # with windows keep more of their loss and answers.
    with_same_layers = [study for study in preferred if study.has_same_layers(has_windows)]
    preferred = with_same_layers or preferred

    longest_trained = max(study.trained for study in preferred)
    of_model = [study for study in preferred if study.trained == longest_trained]
    chosen = min(of_model, key=_factor_of)
    # A method that fails at 8 times may work at twice the length: of one model, losses at a nearer
    # factor say more than answers at a farther one.
    nearer = []
    for study in possible:
        is_same = (study.model, study.on_top) == (chosen.model, chosen.on_top)
        if is_same and study.reaches(factor):
            nearer.append(study)
    nearest_study = min(nearer, key=_factor_of, default=chosen)
    return nearest_study if nearest_study.factor < chosen.factor else chosen


def _factor_of(study: Study) -> float:
    return study.factor


def weak_study_for(
    method: str, factor: float, on_top: str = "", has_windows: bool = False
) -> Study | None:
    """Return a study by which a method can be sorted, though not judged; None if there is none.

    Some models lose little at a longer context even without a method. A study of such a model does
    not show whether a method works, but it shows which of two methods is better. Where a method was
    measured only on such models, it is sorted by this study (`scripts/pages/regret.py` compares
    that with other ways to sort).

    Args:
        method: The name of the method.
        factor: The wanted length over the trained length.
        on_top: The kind of the scaling that the model was trained with and keeps, such as "yarn";
            empty for a model without scaling.
        has_windows: Whether most layers of the model see a window only, and the others all tokens.
    """
    weak_studies = []
    for study in evidence().studies:
        # Pairs of methods with a significant difference, such as ("yarn", "linear"), the better
        # method first. Without any pair, all differences may be chance.
        has_significant_pairs = bool(study.better)
        if study.hardly_loses_without_method and has_significant_pairs:
            weak_studies.append(study)
    return study_for(method, factor, on_top, has_windows, among=weak_studies)


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


def works_untuned(
    method: str, factor: float, on_top: str = "", has_windows: bool = False
) -> Untuned:
    """Return whether a method works without training, by what a study measured, and the reason.

    A method must stay within a bar: lose at most MOST_LOST nats per token, and find LEAST_FOUND
    percent of the facts that were hidden in texts. The reason is such as "on Qwen2.5-0.5B at 4
    times, yarn loses 0.05 nats and finds 94 % of hidden facts; the bar is 0.2 nats and 50 %".

    Args:
        method: The name of the method.
        factor: The wanted length over the trained length.
        on_top: The scaling that the model was trained with and keeps; empty for none.
        has_windows: Whether most layers of the model see a window only, and the others all tokens.
    """
    study = study_for(method, factor, on_top, has_windows)
    if study is None:
        place = f" on top of {on_top} scaling" if on_top else ""
        return Untuned(None, f"{method} was not measured without training{place}")

    place = f"on {study.short_model} at {study.factor:g} times"
    # a model that loses hardly anything without a method cannot show what a method is worth
    if study.hardly_loses_without_method:
        return Untuned(
            None,
            f"{place}, {method} loses {study.lost[method]:z.2f} nats, and the model without it"
            f" {study.lost[BASE]:z.2f}: too little to judge",
        )
    found = f"{place}, {study.describe_result(method)}"
    result = study.compare_with_bar(method)
    if result is None:
        return Untuned(None, f"{found}; no questions were asked that the unchanged model answers")
    was_measured_so_far = study.reaches(factor)
    if not was_measured_so_far:
        return Untuned(None, f"{found}; it was not measured beyond that")
    return Untuned(result, f"{found}; {BAR}", study.finds_some(method))


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
KEYS_IN_CARDS = frozenset(
    (
        "rope_type type factor original_max_position_embeddings rope_theta mrope_section"
        " mrope_interleaved partial_rotary_factor"
    ).split()
)
"""Keys of the block that publishers tell users to add for a longer context."""


def trained_scaling(inspection: Inspection) -> str:
    """Return why a model counts as trained with its scaling, in words; empty if it does not count.

    Anybody can add a scaling to a config.json without training. A scaling counts as trained unless
    the receipt, the card or the lengths of the model show that it was added later (`why_edited`).
    """
    # the RoPE of the model, or for an output of ropeconv the RoPE of its source
    spec = inspection.first_spec
    if not spec.scaled:
        return ""
    # dynamic scaling changes nothing inside the trained length, so no training can have used it
    if isinstance(spec.form, DynamicNtk):
        return ""
    # Yarn-Llama-2: its config says that the scaling was trained ("finetuned": true), which counts
    # more than any other sign
    if not marked_as_trained(inspection) and why_edited(inspection):
        return ""
    return (
        f"the {spec.form.kind} scaling for {spec.context:,} tokens counts as trained: no receipt,"
        " card or length says that it was added later"
    )


def trained_context(inspection: Inspection) -> int:
    """Return how many tokens a model was trained with.

    For Llama 3.1 these are the 131,072 tokens of its scaling, which counts as trained. For a model
    whose scaling was added later, they are those before the scaling.
    """
    if trained_scaling(inspection):
        return inspection.first_spec.context
    return inspection.spec.unscaled().original_context


def marked_as_trained(inspection: Inspection) -> bool:
    """Return whether a model says that its scaling was trained, by the setting `finetuned`.

    Yarn-Llama-2 has this setting.
    """
    source = inspection.source
    if isinstance(source, GgufSource):
        return bool(source.file.get(f"{inspection.name}.rope.scaling.finetuned"))
    return bool(_rope_settings(inspection).get("finetuned"))


def why_edited(inspection: Inspection) -> str:
    """Return how a model shows that its scaling was added without training; empty if it does not.

    There are three signs: the scaling covers more tokens than the model declares; the scaling is
    the edit that the publisher tells users to make for longer texts; or the card mentions an edit.
    """
    # 1. The scaling covers more tokens than the model declares. A publisher who trains with a
    # scaling declares its length. A user often adds only the scaling: the model still declares
    # 32,768 tokens, and YaRN with factor 4 over 32,768 covers 131,072.
    spec = inspection.first_spec
    covered = spec.covered_context  # trained context x factor
    declared = max(spec.context, _reached_length(inspection))
    # LongChat does not declare a trained context, so ropeconv computes it as declared / factor. The
    # covered context then follows from the declared context, and shows nothing.
    trained_follows_from_factor = spec.original_context_source == "factor"
    if covered > declared and not trained_follows_from_factor:
        return (
            f"it declares {spec.context:,} tokens, and its scaling covers {covered:,}: the scaling"
            " was added without them"
        )

    # 2. The scaling is the edit that the publisher recommends.
    recommended = _published_edit(inspection)
    if recommended:
        return f"it is the edit of {recommended}"

    # 3. The card mentions an edit. ropeconv writes a card for its outputs, which says nothing about
    # the training. (`first` is the RoPE before the first run of ropeconv.)
    source = inspection.source
    is_output_of_ropeconv = inspection.first is not None
    if isinstance(source, Source) and not is_output_of_ropeconv:
        card = source.text(CARD) or ""
        if EDITED.search(card):
            return "its card says so"
    return ""


def _published_edit(inspection: Inspection) -> str:
    """Return the card that tells users to add the scaling of this model; empty if no card does.

    The cards of Qwen tell users to add {"rope_type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 32768} to config.json. The scaling of a model counts as this
    edit if config.json has no further keys and the scaling has YaRN's default numbers.
    """
    # the RoPE of the model, or for an output of ropeconv the RoPE of its source
    spec = inspection.first_spec
    form = spec.form
    if not isinstance(form, Yarn):
        return ""

    # No key beside those in the cards. For an output of ropeconv this says nothing, since ropeconv
    # writes further keys. (`first` is the RoPE before the first run of ropeconv.)
    is_output_of_ropeconv = inspection.first is not None
    settings = _rope_settings(inspection)
    if not is_output_of_ropeconv:
        keys = {key for key, value in settings.items() if value is not None}
        keys_not_in_cards = keys - KEYS_IN_CARDS
        if keys_not_in_cards:
            return ""

    # the default numbers of YaRN
    usual_factor = temperature_attention_factor(form.factor)
    has_usual_factor = abs(spec.attention_factor - usual_factor) < 1e-6
    # transformers 4 writes `"truncate": null` for a key that nobody set, and computes false with it
    has_usual_ends = form.truncate or settings.get("truncate", True) is None
    has_usual_ramp = (form.beta_fast, form.beta_slow) == (32.0, 1.0) and has_usual_ends
    if not has_usual_factor or not has_usual_ramp:
        return ""
    return recommendation_of("yarn", inspection, form.original_context, form.factor)


def _rope_settings(inspection: Inspection) -> JsonObject:
    """Return the RoPE dictionary of a config.json; empty for a config or a model without one."""
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
