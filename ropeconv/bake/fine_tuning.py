"""The training that a method needs at a length: none, or fine-tuning.

Read `fine_tuning_for` first: every front that says so asks it.

The answer rests on the factor over the context that the weights were trained for. That is

- the declared context of a model that was trained with its scaling (Llama 3.1: 131,072), where the
  scaling is kept or becomes wider (YaRN with factor 40 replaced by one with 80);
- the context before the scaling (Llama 3.1: 8,192) in every other case. `--replace` starts there.
"""

from dataclasses import replace

import numpy as np

from ..inspection.inspection import Inspection
from ..inspection.receipts.receipt import FineTuningLevel, FineTuningRecord
from ..rope.forms import InterpolatedForm, Llama3, Yarn
from ..rope.methods.method import REGISTRY, Method
from ..rope.methods.vectors import AsIs, Dynamic, InvFreq
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .evidence import Study, recommendation_of, studies_of, trained_scaling


def fine_tuning_for(recipe: Recipe, inspection: Inspection, schedule: Schedule) -> FineTuningRecord:
    """Return what a recipe needs for a model at the context of its schedule.

    Args:
        recipe: The method and its modifiers.
        inspection: The model that the recipe starts from: with `--replace` its first source.
        schedule: The schedule of the recipe for the model.
    """
    # an output that --as-is only writes again needs what it needed before, by its receipt
    context = schedule.context
    is_as_is = isinstance(recipe.method, AsIs)
    has_same_length = context == inspection.spec.context
    in_receipt = inspection.fine_tuning
    if is_as_is and has_same_length and in_receipt is not None:
        return in_receipt

    # a model that was trained with its scaling, such as Llama 3.1, where the scaling stays or
    # becomes wider: it was trained for the context that it declares
    first = inspection.first_spec
    computes_scaling = _is_same(schedule, first) or _is_wider(schedule, first)
    keeps_scaling = recipe.on_top or is_as_is or computes_scaling
    if trained_scaling(inspection) and keeps_scaling:
        factor = context / first.context
        level, reason = _on_trained_scaling(recipe, first, factor)
        return FineTuningRecord(level=level, factor=factor, trained=first.context, reason=reason)

    # every other model: it was trained for the context before any scaling
    trained = recipe.original_context or first.original_context
    factor = context / trained
    level, reason = _from_unscaled(recipe, inspection, trained, factor)
    return FineTuningRecord(level=level, factor=factor, trained=trained, reason=reason)


def _is_same(schedule: Schedule, first: RopeSpec) -> bool:
    """Whether a schedule computes the RoPE of the training.

    `--llama3 8 --replace` does for Llama 3.1.
    """
    current = first.current()
    return (
        np.array_equal(schedule.inv_freq, current.inv_freq)
        and schedule.attention_factor == current.attention_factor
        and schedule.softmax_scale == current.softmax_scale
    )


def _is_wider(schedule: Schedule, first: RopeSpec) -> bool:
    """Whether a schedule is the scaling of the training with a larger factor, as of --on-top."""
    wider = schedule.form
    trained = first.form
    scalings = (InterpolatedForm, Llama3, Yarn)
    if not (isinstance(wider, scalings) and isinstance(trained, scalings)):
        return False
    return wider.factor > trained.factor and replace(wider, factor=trained.factor) == trained


def _on_trained_scaling(
    recipe: Recipe, first: RopeSpec, factor: float
) -> tuple[FineTuningLevel, str]:
    """Return the training that a method needs on top of the scaling of the training, and why.

    The level is "none", "recommended" or "needed".

    Args:
        recipe: The method and its modifiers.
        first: The RoPE of the model, with its scaling.
        factor: The wanted context over the context that `first` declares.
    """
    if factor <= 1:
        return "none", ""
    if isinstance(recipe.method, AsIs):
        return "needed", "its RoPE does not change"

    # here no publisher recommends anything, so only measurements count
    name = recipe.method.name
    studies = [study for study in studies_of(first.form.kind) if name in study.beyond]
    studies_at_length = [study for study in studies if study.factor >= factor]
    if _all_better(studies_at_length, name):
        return "none", f"measured on top of {first.form.kind} scaling"
    if studies:
        longest = max(study.factor for study in studies)
        reason = (
            f"on top of a trained scaling, {name} was measured without training up to {longest:g}"
            " times"
        )
        return "needed", reason
    return "needed", f"on top of a trained scaling, {name} was not measured without training"


def _from_unscaled(
    recipe: Recipe, inspection: Inspection, trained: int, factor: float
) -> tuple[FineTuningLevel, str]:
    """Return the training that a method needs for a model trained without scaling, and why.

    The level is "none", "recommended" or "needed".

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.
        trained: The context of the training, in tokens.
        factor: The wanted context over that.
    """
    if factor <= 1:
        return "none", ""

    # None for an unchanged RoPE, which is fine where no layer sees a new angle
    method = _method_of_output(recipe, inspection.spec)
    if method is None:
        if not _is_windowed(inspection.spec, trained):
            return "needed", "its RoPE does not change"
        if "none" in inspection.spec.layers:
            return "recommended", "its layers without RoPE were not trained at it"
        return "none", "its layers see no angle beyond their windows"
    if method is InvFreq:
        return "recommended", "nothing is known of these frequencies without training"

    # the publisher of the model knows more than a paper about other models, and a paper more than
    # single measurements
    recommended = recommendation_of(method.name, inspection, trained, factor)
    if recommended:
        return "none", recommended

    limit = method.max_untuned_factor
    if recipe.on_top:
        limit = min(limit, _limit_of_form(inspection.spec))
    if factor <= limit:
        return "none", method.finetuning_note
    if limit == 1:
        unknown = f"{method.name} is not known to work without training"
        return "needed", method.finetuning_note or unknown

    # beyond that, training is only recommended where measurements of unscaled models show that the
    # method helps
    reason = f"{method.name} is known to work without training up to {limit:g} times"
    measured = []
    for study in studies_of(""):
        is_untuned = method.name in study.beyond and not study.fine_tuned
        if is_untuned and study.factor >= factor:
            measured.append(study)
    if _all_better(measured, method.name):
        return "recommended", reason
    return "needed", reason


def _method_of_output(recipe: Recipe, spec: RopeSpec) -> type[Method] | None:
    """The method of an output: with as-is that of the scaling; None where it has no scaling."""
    method = recipe.method
    if isinstance(method, Dynamic):
        return REGISTRY[method.parts()[0]]
    if not isinstance(method, AsIs):
        return type(method)
    if spec.scaled:
        return REGISTRY.get(spec.form.kind)
    return None


def _is_windowed(spec: RopeSpec, trained: int) -> bool:
    """Whether no layer that rotates sees beyond a window within the trained context."""
    pairs = list(zip(spec.layers, spec.windows, strict=False))
    for kind, window in pairs:
        if kind != "none" and (window is None or window > trained):
            return False
    return bool(pairs)


def _limit_of_form(spec: RopeSpec) -> float:
    """The factor up to which the method of a scaling is known to work without training."""
    kind = REGISTRY.get(spec.form.kind)
    return 1.0 if kind is None else kind.max_untuned_factor


def _all_better(studies: list[Study], name: str) -> bool:
    """Whether a method has studies, and was better than the unchanged model in all of them."""
    compared = [study for study in studies if "base" in study.beyond]
    return bool(compared) and all(study.sign(name, "base") > 0 for study in compared)
