"""The evidence on methods and models: studies, recommendations, and whether a scaling was trained.

`evidence.toml` has the studies and recommendations. `trained_scaling` judges a scaling by a rule:
it counts as trained unless the receipt, the card or the lengths of the model say that it is an
edit. `fine_tuning.py` and `advice.py` draw conclusions from it.
"""

import re
from functools import cache

import msgspec

from ..formats.jsontext import JsonObject
from ..formats.package_data import package_data
from ..inspection.inspection import ConfigInspection, Inspection
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.source import CARD, Source
from ..rope.forms import DynamicNtk, InterpolatedForm, Yarn, temperature_attention_factor
from ..rope.spec import RopeSpec
from ..runtimes.read_config import rope_dict

ERRORS = 3
"""Standard errors from which on a difference between two methods counts."""


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Methods that were measured on the same model and text; `evidence.toml` explains the
    fields.
    """

    model: str
    factor: float
    unit: str
    n: str
    source: str
    fine_tuned: bool = False
    on_top: str = ""
    higher: bool = False
    error: float = 0.0
    beyond: dict[str, float] = {}
    inside: dict[str, float] = {}
    retrieval: dict[str, float] = {}

    def sign(self, name: str, other: str) -> float:
        """Return 1 where a method is better than another one, -1 where it is worse, else 0.

        Their numbers beyond the trained context are compared.
        """
        difference = self.beyond[name] - self.beyond[other]
        if abs(difference) <= ERRORS * self.error:
            return 0.0
        has_more = difference > 0
        is_better = has_more == self.higher  # for a loss, which is not `higher`, less is better
        return 1.0 if is_better else -1.0


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


def recommendation_of(method: str, inspection: Inspection, trained: int, factor: float) -> str:
    """Return where the publisher of a model recommends a method; empty where nothing is known.

    Args:
        method: The name of the method.
        inspection: The inspection of the model.
        trained: The context before any scaling, in tokens.
        factor: The wanted length over that context.
    """
    for recommendation in evidence().recommendations:
        is_of_model = (
            inspection.family_name in recommendation.families and trained == recommendation.original
        )
        if is_of_model and method == recommendation.method and factor <= recommendation.factor:
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

    A scaling in the files of a model counts as trained. The exception is one for which the receipt,
    the card or the lengths of the model say that only its config was edited (`why_edited`), unless
    the settings themselves say that it was trained.
    """
    # for an output of ropeconv, the model before counts: its own scaling was not trained
    first = inspection.first_spec
    # dynamic scaling changes nothing inside the trained length, so nothing was trained with it
    if not first.scaled or isinstance(first.form, DynamicNtk):
        return ""
    if not marked_as_trained(inspection) and why_edited(inspection):
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
    # A publisher declares the context that was trained, while an edit often adds only the scaling.
    # The covered context is factor * context before the scaling. If the latter is itself only known
    # as declared context / factor, as in LongChat, the product says nothing.
    spec = inspection.first_spec
    form = spec.form
    covered = covered_context(spec)
    declared = max(spec.context, _reached_length(inspection))
    follows_from_factor = spec.original_context_source == "factor"
    if covered > declared and not follows_from_factor:
        return (
            f"it declares {spec.context:,} tokens, and its scaling covers {covered:,}: the scaling"
            " was added without them"
        )

    # Qwen's cards tell users to add yarn with a factor and the trained length, so that all other
    # numbers are the defaults. (The settings of an output of ropeconv are its own, and not those of
    # the model before it.)
    is_output = inspection.first is not None
    settings = {key for key, value in _settings(inspection).items() if value is not None}
    has_only_usual_keys = is_output or settings <= README_KEYS
    if isinstance(form, Yarn) and has_only_usual_keys:
        usual_factor = temperature_attention_factor(form.factor)
        has_usual_factor = abs(spec.attention_factor - usual_factor) < 1e-6
        has_usual_ramp = (form.beta_fast, form.beta_slow, form.truncate) == (32.0, 1.0, True)
        recommended = recommendation_of("yarn", inspection, form.original_context, form.factor)
        if has_usual_factor and has_usual_ramp and recommended:
            return f"it is the edit of {recommended}"

    # the card of an output is its own too
    source = inspection.source
    if isinstance(source, Source) and not is_output and EDITED.search(source.text(CARD) or ""):
        return "its card says so"
    return ""


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


def covered_context(spec: RopeSpec) -> int:
    """The tokens that a scaling covers by its factor; 0 where that is not its meaning.

    Llama 3.2 has a factor of 32 over 8,192 tokens, and was trained with 131,072.
    """
    form = spec.form
    if isinstance(form, Yarn):
        return round(form.factor * form.original_context)
    if isinstance(form, InterpolatedForm):
        return round(form.factor * spec.original_context)
    return 0
