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

    # A model that was trained with its scaling, such as Llama 3.1, where the output has the same
    # scaling or a wider one. That may follow from an option (--as-is, --on-top), or from the new
    # frequencies: Llama 3.1 has llama3 scaling with factor 8, which `--llama3 8 --replace` writes
    # again.
    trained_spec = inspection.first_spec
    keeps_scaling = recipe.on_top or is_as_is
    if not keeps_scaling:
        keeps_scaling = _is_same(schedule, trained_spec) or _is_wider(schedule, trained_spec)
    if keeps_scaling and trained_scaling(inspection):
        trained = trained_spec.context
        factor = context / trained
        level, reason = _on_trained_scaling(recipe, inspection, trained_spec, factor)
        return FineTuningRecord(level=level, factor=factor, trained=trained, reason=reason)

    # every other model: it was trained for the context before any scaling
    trained = recipe.original_context or trained_spec.original_context
    factor = context / trained
    level, reason = _from_unscaled(recipe, inspection, trained, factor)
    return FineTuningRecord(level=level, factor=factor, trained=trained, reason=reason)


def _is_same(schedule: Schedule, trained_spec: RopeSpec) -> bool:
    """Whether a schedule computes the RoPE of the training.

    `--llama3 8 --replace` does for Llama 3.1.
    """
    return schedule.computes_same(trained_spec.current())


def _is_wider(schedule: Schedule, trained_spec: RopeSpec) -> bool:
    """Whether a schedule is the scaling of the training with a larger factor, as of --on-top."""
    wider = schedule.form
    trained = trained_spec.form
    scalings = (InterpolatedForm, Llama3, Yarn)
    if not (isinstance(wider, scalings) and isinstance(trained, scalings)):
        return False
    return wider.factor > trained.factor and replace(wider, factor=trained.factor) == trained


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
    if factor <= 1:  # no longer than in training
        return "none", ""
    # --as-is declares a longer context, and adds nothing to the scaling that would reach it
    if isinstance(recipe.method, AsIs):
        return "needed", "its RoPE does not change"

    # Measurements of the method on top of this kind of scaling. (Recommendations of publishers,
    # such as Qwen's YaRN by 4, are for models without a trained scaling.)
    kind = trained_spec.form.kind
    measured = _measured(inspection, recipe.method.name, factor, on_top=kind)
    return _training_by_measurement(measured)


def _measured(inspection: Inspection, method: str, factor: float, on_top: str = "") -> Untuned:
    """Return whether a method works without training by what was measured on models of this kind.

    The bar is a loss of the next token and hidden facts, and an encoder gives neither.
    """
    if inspection.encoder:
        return Untuned(None, f"{method} was not measured on encoders")
    return works_untuned(method, factor, on_top)


def _training_by_measurement(untuned: Untuned) -> tuple[FineTuningLevel, str]:
    """Return the training that a method needs by what was measured, and the numbers.

    The bar is a small loss, and half of the facts that were hidden in long texts found. A method
    that meets it needs no training. A method that misses it, and finds some facts, can be used
    without training, at a known loss. A method that finds none, or was not measured, needs
    training.
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

    The publisher of the model decides, else measurements of the method on other models, else the
    author of the method.

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.
        trained: The context of the training, in tokens.
        factor: The wanted context over `trained`.

    Returns:
        The level of fine-tuning: "none", "undecided", "recommended" or "needed"; and the reason,
        such as "on Qwen2.5-0.5B at 4 times, yarn loses 0.05 nats".
    """
    if factor <= 1:  # no longer than in training
        return "none", ""

    # a longer context with the same RoPE, and frequencies from a file of the user
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
    level, reason = _training_by_measurement(measured)
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

    With `--on-top`, the model keeps a scaling that it was not trained with. Then both the method
    and that kind of scaling must work without training, so the worse of their two results counts.

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.
        method: The class of the method.
        factor: The wanted context over the trained one.
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
