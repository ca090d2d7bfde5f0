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
    recommendation_of,
    trained_scaling,
    untuned_rank,
    works_untuned,
)


def fine_tuning_for(recipe: Recipe, inspection: Inspection, schedule: Schedule) -> FineTuningRecord:
    """Return whether a model needs fine-tuning for the new context of a recipe, and why.

    The answer depends on the factor between the new context and the trained context. A model that
    was trained with its scaling was trained for the context that it declares. Any other model was
    trained for the context before the scaling.

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model. With `--replace`, the model before the first run of
            ropeconv.
        schedule: The frequencies and the context that the recipe gives the model.
    """
    # `--as-is` without a longer context, for an output of ropeconv: the answer in its receipt (the
    # record of how the output was made) still holds
    context = schedule.context
    is_as_is = isinstance(recipe.method, AsIs)
    is_only_rewritten = is_as_is and context == inspection.spec.context
    answer_in_receipt = inspection.fine_tuning
    if is_only_rewritten and answer_in_receipt is not None:
        return answer_in_receipt

    # Llama 3.1 and others that were trained with their scaling: the output keeps the scaling, or
    # has a larger factor. The user passes --as-is or --on-top, or gives the same method again: for
    # Llama 3.1, `--llama3 8 --replace`.
    source_spec = inspection.first_spec
    keeps_scaling = recipe.on_top or is_as_is
    if not keeps_scaling:
        keeps_scaling = _is_same(schedule, source_spec) or _is_wider(schedule, source_spec)
    if keeps_scaling and trained_scaling(inspection):
        trained = source_spec.context
        factor = context / trained
        level, reason = _on_trained_scaling(recipe, inspection, source_spec, factor)
        return FineTuningRecord(level=level, factor=factor, trained=trained, reason=reason)

    # any other model
    trained = recipe.original_context or source_spec.original_context
    factor = context / trained
    level, reason = _from_unscaled(recipe, inspection, schedule, trained, factor)
    return FineTuningRecord(level=level, factor=factor, trained=trained, reason=reason)


def _is_same(schedule: Schedule, trained_spec: RopeSpec) -> bool:
    """Whether a schedule computes the RoPE of the training.

    `--llama3 8 --replace` does for Llama 3.1.
    """
    return schedule.computes_same(trained_spec.current())


def _is_wider(schedule: Schedule, trained_spec: RopeSpec) -> bool:
    """Return whether a schedule is the scaling of a model with a larger factor, as of --on-top."""
    new_scaling = schedule.form
    old_scaling = trained_spec.form
    with_factor = (InterpolatedForm, Llama3, Yarn)
    if not isinstance(new_scaling, with_factor) or not isinstance(old_scaling, with_factor):
        return False
    has_larger_factor = new_scaling.factor > old_scaling.factor
    with_trained_factor = replace(new_scaling, factor=old_scaling.factor)
    return has_larger_factor and with_trained_factor == old_scaling


def _on_trained_scaling(
    recipe: Recipe, inspection: Inspection, trained_spec: RopeSpec, factor: float
) -> tuple[FineTuningLevel, str]:
    """Return whether a model that was trained with a scaling needs fine-tuning, and why.

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.
        trained_spec: The RoPE of the model, with its scaling.
        factor: The wanted context over the context that `trained_spec` declares.

    Returns:
        The level of fine-tuning: "none", "undecided", "recommended" or "needed"; and the reason,
        such as "on Qwen2.5-0.5B at 4 times, yarn loses 0.05 nats".
    """
    if factor <= 1:  # the context is not longer than in training
        return "none", ""
    # --as-is: the config declares a longer context, and the RoPE stays that of the shorter one
    if isinstance(recipe.method, AsIs):
        if inspection.spec.sees_only_windows(trained_spec.context):
            return _from_unchanged(inspection, trained_spec.context)
        return "needed", "its RoPE does not change"

    # any other method: by studies of the method on models with this kind of scaling, such as "yarn"
    kind = trained_spec.form.kind
    measured = _measured(inspection, recipe.method.name, factor, on_top=kind)
    return training_by_measurement(measured)


def _measured(inspection: Inspection, method: str, factor: float, on_top: str = "") -> Untuned:
    """Return whether a method works without training by what was measured on models of this kind.

    The bar is a loss of the next token and hidden facts, and an encoder gives neither.
    """
    if inspection.encoder:
        return Untuned(None, f"{method} was not measured on encoders")
    has_windows = inspection.spec.sliding_window is not None
    return works_untuned(method, factor, on_top, has_windows)


def training_by_measurement(untuned: Untuned) -> tuple[FineTuningLevel, str]:
    """Return the level of fine-tuning that a method needs by a study, and the reason.

    Args:
        untuned: The result of the method without training. The bar is a small loss, and half of the
            facts that were hidden in long texts found.
    """
    # the method loses little and finds at least half of the facts
    if untuned.result == "met":
        return "none", untuned.reason
    # too few questions were asked to say whether the method finds half
    if untuned.result == "undecided":
        return "undecided", untuned.reason
    # the method finds some facts, so it can be used without training, at a loss
    if untuned.result == "missed" and untuned.finds_some:
        return "recommended", untuned.reason
    # the method finds nothing, or was not measured
    return "needed", untuned.reason


def _from_unscaled(
    recipe: Recipe, inspection: Inspection, schedule: Schedule, trained: int, factor: float
) -> tuple[FineTuningLevel, str]:
    """Return whether a model that was trained without scaling needs fine-tuning, and why.

    The answer is taken from the publisher of the model, then from studies of the method on other
    models, and then from the author of the method.

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.
        schedule: The frequencies that the recipe gives the model.
        trained: The context of the training, in tokens.
        factor: The wanted context over `trained`.

    Returns:
        The level of fine-tuning: "none", "undecided", "recommended" or "needed"; and the reason,
        such as "on Qwen2.5-0.5B at 4 times, yarn loses 0.05 nats".
    """
    if factor <= 1:  # the context is not longer than in training
        return "none", ""

    # a method that changes no frequency of this model, where it changes those of measured models
    if schedule.keeps_frequencies(inspection.first_spec.unscaled().current()):
        return _from_unchanged(inspection, trained)

    # the class of the method; None for an output with the same RoPE and a longer context
    method = _method_of_output(recipe, inspection.spec)
    if method is None:
        return _from_unchanged(inspection, trained)
    # a file of the user with frequencies
    if method is InvFreq:
        return "recommended", "nothing is known of these frequencies without training"

    # the publisher: for Qwen3, YaRN is recommended up to a factor of 4
    recommended = recommendation_of(method.name, inspection, trained, factor)
    if recommended:
        return "none", recommended

    # studies of the method without training
    measured = _measured_with_scaling(recipe, inspection, method, factor)
    level, reason = training_by_measurement(measured)
    was_measured = measured.result is not None
    if was_measured or not method.finetuning_note:
        return level, reason

    # the author of the method, who says that it works up to a factor without training
    if factor <= method.max_untuned_factor:
        level = "recommended"
    return level, f"{reason}; {method.finetuning_note}"


def _measured_with_scaling(
    recipe: Recipe, inspection: Inspection, method: type[Method], factor: float
) -> Untuned:
    """Return what was measured of a method at a factor, without training.

    With `--on-top`, the model keeps a scaling that it was not trained with. Then both the method
    and that kind of scaling must work without training, so the worse of their two results counts.

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.
        method: The class of the method.
        factor: The wanted context over the trained context.
    """
    of_method = _measured(inspection, method.name, factor)
    if not recipe.on_top:
        return of_method
    of_scaling = _measured(inspection, inspection.spec.form.kind, factor)
    # ranks: 0 for a method that works without training, 1 for undecided, 2 for any other
    scaling_is_worse = untuned_rank(of_scaling.result) > untuned_rank(of_method.result)
    return of_scaling if scaling_is_worse else of_method


def _from_unchanged(inspection: Inspection, trained: int) -> tuple[FineTuningLevel, str]:
    """Return whether a model needs fine-tuning for a longer context with the same RoPE, and why.

    Args:
        inspection: The inspection of the model.
        trained: The context of the training, in tokens.
    """
    # layers whose window is within the trained context see no distance that is new to them
    if inspection.spec.sees_only_windows(trained):
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
    """Return the class of the method that an output has; None for an output without scaling."""
    method = recipe.method
    if isinstance(method, Dynamic):
        return REGISTRY[method.parts()[0]]
    if not isinstance(method, AsIs):
        return type(method)
    if spec.scaled:
        return REGISTRY.get(spec.form.kind)
    return None
