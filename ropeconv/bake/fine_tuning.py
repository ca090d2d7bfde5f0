"""The training that a method needs at a length: none, or fine-tuning.

Read `fine_tuning_for` first: every front that says so asks it.

The answer rests on the factor over the context that the weights were trained for. That is

- the declared context of a model that was trained with its scaling (Llama 3.1: 131,072), where the
  scaling is kept or becomes wider (YaRN with factor 40 replaced by one with 80);
- the context before the scaling (Llama 3.1: 8,192) in every other case. `--replace` starts there.
"""

from dataclasses import replace

from ..inspection.inspection import Inspection
from ..inspection.receipts.receipt import FineTuningLevel, FineTuningRecord
from ..rope.forms import InterpolatedForm, Llama3, Yarn
from ..rope.methods.method import REGISTRY, Method
from ..rope.methods.vectors import AsIs, Dynamic, InvFreq
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .evidence import (
    Untuned,
    place_by_bar,
    recommendation_of,
    trained_scaling,
    works_untuned,
)


def fine_tuning_for(recipe: Recipe, inspection: Inspection, schedule: Schedule) -> FineTuningRecord:
    """Return whether a model needs fine-tuning for a recipe, and why, at the new context.

    That depends on how much longer the new context is than the one that the model was trained for:
    the context that it declares, if it was trained with its scaling, else the one before any
    scaling.

    Args:
        recipe: The method and its modifiers.
        inspection: The model that the recipe starts from: with `--replace` its first source.
        schedule: The schedule of the recipe for the model.
    """
    # An output of ropeconv that --as-is only writes again needs what it needed before. Its receipt,
    # the record of how it was made, says that.
    context = schedule.context
    is_as_is = isinstance(recipe.method, AsIs)
    is_only_rewritten = is_as_is and context == inspection.spec.context
    in_receipt = inspection.fine_tuning
    if is_only_rewritten and in_receipt is not None:
        return in_receipt

    # A model that was trained with its scaling, such as Llama 3.1, where the scaling stays or
    # becomes wider. `--llama3 8 --replace` is a way to write the same scaling, or a wider one.
    first = inspection.first_spec
    keeps_scaling = (
        recipe.on_top or is_as_is or _is_same(schedule, first) or _is_wider(schedule, first)
    )
    if keeps_scaling and trained_scaling(inspection):
        factor = context / first.context
        level, reason = _on_trained_scaling(recipe, inspection, first, factor)
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
    return schedule.computes_same(first.current())


def _is_wider(schedule: Schedule, first: RopeSpec) -> bool:
    """Whether a schedule is the scaling of the training with a larger factor, as of --on-top."""
    wider = schedule.form
    trained = first.form
    scalings = (InterpolatedForm, Llama3, Yarn)
    if not (isinstance(wider, scalings) and isinstance(trained, scalings)):
        return False
    return wider.factor > trained.factor and replace(wider, factor=trained.factor) == trained


def _on_trained_scaling(
    recipe: Recipe, inspection: Inspection, first: RopeSpec, factor: float
) -> tuple[FineTuningLevel, str]:
    """Return whether a method on top of a scaling that was trained needs fine-tuning, and why.

    Such as ("needed", "its RoPE does not change"); the level is "none", "undecided", "recommended"
    or "needed".

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.
        first: The RoPE of the model, with its scaling.
        factor: The wanted context over the context that `first` declares.
    """
    if factor <= 1:
        return "none", ""
    if isinstance(recipe.method, AsIs):
        return "needed", "its RoPE does not change"

    # here no publisher recommends anything, so only measurements count
    return _by_the_bar(_measured(inspection, recipe.method.name, factor, first.form.kind))


def _measured(inspection: Inspection, method: str, factor: float, on_top: str = "") -> Untuned:
    """Return whether a method works without training by what was measured on models of this kind.

    The bar is a loss of the next token and hidden facts, and an encoder gives neither.
    """
    if inspection.encoder:
        return Untuned(None, f"{method} was not measured on encoders")
    return works_untuned(method, factor, on_top)


def _by_the_bar(untuned: Untuned) -> tuple[FineTuningLevel, str]:
    """Return the training that a method needs by what was measured, and the numbers.

    A method that meets the bar needs none. One that misses it and finds some hidden facts can be
    used without training, at a known loss; one that finds none, or was not measured, cannot.
    """
    if untuned.result == "met":
        return "none", untuned.reason
    if untuned.result == "undecided":
        return "undecided", untuned.reason
    if untuned.result == "missed" and untuned.finds_some:
        return "recommended", untuned.reason
    return "needed", untuned.reason


def _from_unscaled(
    recipe: Recipe, inspection: Inspection, trained: int, factor: float
) -> tuple[FineTuningLevel, str]:
    """Return whether a model that was trained without scaling needs fine-tuning, and why.

    Such as ("needed", "its RoPE does not change"); the level is "none", "undecided", "recommended"
    or "needed". The first source that says something decides: the publisher of the model, then
    measurements on other models, then the author of the method.

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.
        trained: The context of the training, in tokens.
        factor: The wanted context over that.
    """
    if factor <= 1:  # no longer than in training
        return "none", ""

    # no method, or numbers of the user's own: no source says anything of these
    method = _method_of_output(recipe, inspection.spec)
    if method is None:
        return _from_unchanged(inspection, trained)
    if method is InvFreq:
        return "recommended", "nothing is known of these frequencies without training"

    # the publisher, who recommends YaRN up to a factor of 4 for Qwen3, for example
    recommended = recommendation_of(method.name, inspection, trained, factor)
    if recommended:
        return "none", recommended

    # measurements of the method without training
    measured = _measured_with_scaling(recipe, inspection, method, factor)
    level, reason = _by_the_bar(measured)
    was_measured = measured.result is not None
    if was_measured or not method.finetuning_note:
        return level, reason

    # the author of the method, who may name the largest factor without training
    if factor <= method.max_untuned_factor:
        level = "recommended"
    return level, f"{reason}; {method.finetuning_note}"


def _measured_with_scaling(
    recipe: Recipe, inspection: Inspection, method: type[Method], factor: float
) -> Untuned:
    """Return what was measured of a method at a factor, without training.

    With `--on-top`, the model keeps a scaling that it was not trained with either. Then it is the
    worse result of the two: that of the method, or that of the kind of the scaling.
    """
    measured = _measured(inspection, method.name, factor)
    if not recipe.on_top:
        return measured
    measured_scaling = _measured(inspection, inspection.spec.form.kind, factor)
    # `place_by_bar` orders results from good to bad: the larger number is the worse result
    scaling_is_worse = place_by_bar(measured_scaling.result) > place_by_bar(measured.result)
    return measured_scaling if scaling_is_worse else measured


def _from_unchanged(inspection: Inspection, trained: int) -> tuple[FineTuningLevel, str]:
    """Return whether a model needs fine-tuning for a longer context with the same RoPE, and why.

    Args:
        inspection: The inspection of the model.
        trained: The context of the training, in tokens.
    """
    # layers whose window is within the trained context see no distance that is new to them
    if _is_windowed(inspection.spec, trained):
        if "none" in inspection.spec.layers:
            return "recommended", "its layers without RoPE were not trained at it"
        return "none", "its layers see no angle beyond their windows"

    # a pair that makes less than one turn within the trained context gets angles that it never had
    start = inspection.first_spec.unscaled()
    if start.fewest_turns < 1:
        return "needed", "its RoPE does not change"
    return "undecided", (
        f"each pair turns {start.fewest_turns:,.0f} times or more within the trained context, so no"
        " angle is new, and a model like it was not measured"
    )


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
