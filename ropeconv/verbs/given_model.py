"""`GivenModel`: the model of `bound` and `plot`, on disk or given by numbers, with its recipes.

`find` returns that of a command line, and `of_inspection` that of a model that was inspected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..rope.forms import Plain
from ..rope.lengths import parse_tokens
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import WIDEST_HEAD, RopeSpec
from .recipes import Values, build_recipes, chosen_methods

if TYPE_CHECKING:
    from ..inspection.inspection import Inspection

NOT_FREQUENCIES = (
    "attention_factor",
    "temperature_slope",
    "temperature_intercept",
    "log_n",
    "log_n_length",
)
"""Modifiers that change queries, cos and sin."""


@dataclass(frozen=True)
class GivenModel:
    """A model and the recipes for it."""

    name: str
    """For display."""

    spec: RopeSpec
    """Its RoPE, unscaled if there are recipes."""

    recipes: tuple[Recipe, ...]

    inspection: Inspection | None = None
    """None for a model given by numbers."""

    def schedules(self) -> dict[str, Schedule]:
        """Return the frequencies that each recipe gives this model.

        Returns:
            A schedule for each recipe, such as {"yarn4": ..., "ntk4": ...}. Without recipes, the
            schedule of the model, under the name of the model.
        """
        if not self.recipes:
            return {self.name: self.spec.current()}

        from ..bake.start import complete_recipe

        schedules: dict[str, Schedule] = {}
        for recipe in self.recipes:
            if self.inspection is None:  # given by numbers
                schedule = recipe.schedule(self.spec)
            else:
                schedule = self.inspection.schedule_of(complete_recipe(recipe, self.inspection))

            label = recipe.method.label
            is_label_taken = label in schedules  # two recipes with the same method
            if is_label_taken:
                label = f"{label}-{len(schedules)}"
            schedules[label] = schedule
        return schedules


def in_numbers(values: dict[str, Any], head_dim: int | None, rotary_dim: int | None) -> GivenModel:
    """Return a model that the user describes by numbers, with the recipes to plot for it.

    An example is `ropeconv plot --theta 1e6 --original-context 32k --yarn 4`.

    Args:
        values: The options of `ropeconv plot` that a recipe can have, by name. `theta` is the base
            of the model, 10000 by default, and `original_context` its trained length, 4096 by
            default.
        head_dim: The width of an attention head; None for 128.
        rotary_dim: The number of rotated dimensions of a head; None for all.

    Raises:
        UsageError: A number is out of its range, or options do not go together.
    """
    theta = values.get("theta")
    values_without_theta = {**values, "theta": None}
    has_other_method = bool(chosen_methods(values_without_theta))

    # --theta 1e6 --yarn 4: --theta is the base of the model, and YaRN the method. --context is the
    # length that YaRN reaches.
    if has_other_method:
        recipe_values = values_without_theta

    # --theta 1e6: --theta is both the base of the model and the method, which sets that base.
    elif theta is not None:
        recipe_values = values

    # --context 128k: there is no method. --context is the length that the model declares.
    else:
        recipe_values = {**values, "context": None, "original_context": None}

    trained_context = parse_tokens(values.get("original_context") or "4096")
    recipes = build_recipes(recipe_values)
    declared_context = trained_context
    if not recipes and values.get("context") is not None:
        declared_context = parse_tokens(values["context"])

    # the model
    width, rotary = head_size(head_dim, rotary_dim)
    base = 10000.0 if theta is None else theta
    if base <= 1:
        raise UsageError(f"--theta {base:g} must be above 1")
    spec = RopeSpec(
        head_dim=width,
        rotary_dim=rotary,
        form=Plain(base),
        original_context=trained_context,
        context=declared_context,
    )
    return GivenModel(name=f"theta {base:.12g}", spec=spec, recipes=tuple(recipes))


def head_size(head_dim: int | None, rotary_dim: int | None) -> tuple[int, int]:
    """Return head_dim and rotary_dim, by default 128 and all of it.

    Raises:
        UsageError: If they do not fit together.
    """
    width = 128 if head_dim is None else head_dim
    rotary = width if rotary_dim is None else rotary_dim
    if width > WIDEST_HEAD:
        raise UsageError(
            f"--head-dim {width} must be at most {WIDEST_HEAD}: published models have heads of up"
            " to 576 dimensions"
        )
    # dimensions rotate in pairs
    is_possible = 2 <= rotary <= width and rotary % 2 == 0
    if not is_possible:
        raise UsageError(
            f"--rotary-dim {rotary} must be even, at least 2, and not above --head-dim {width}"
        )
    return width, rotary


def find(
    argument: str | None, values: dict[str, Any], head_dim: int | None, rotary_dim: int | None
) -> GivenModel:
    """Return the model that a command line names, with the recipes that its options make.

    A model is a SOURCE, such as a folder or an id on the Hub. Without one it is given by numbers:
    the width of a head, its base and the lengths.

    Args:
        argument: The SOURCE; None for a model given by numbers.
        values: The options of recipes, by name, such as {"yarn": "4", "context": None}.
        head_dim: `--head-dim`.
        rotary_dim: `--rotary-dim`.

    Raises:
        UsageError: For options that have no effect.
        BadSource: As `inspect_source` does.
    """
    from ..inspection.inspection import inspect_source
    from ..models.open import open_source

    if argument is None:
        return in_numbers(values, head_dim, rotary_dim)
    if head_dim is not None or rotary_dim is not None:
        raise UsageError(
            "--head-dim and --rotary-dim are for models in numbers; a SOURCE has its own"
        )
    return of_inspection(inspect_source(open_source(argument)), values)


def of_inspection(inspection: Inspection, values: Values) -> GivenModel:
    """Return a model that was inspected, with the recipes that options describe.

    Args:
        inspection: A model on disk or on the Hub.
        values: The options of recipes, by name, such as {"yarn": "4"}.
    """
    # Most recipes start from the RoPE before any extension. For an output of ropeconv that is the
    # RoPE of its source. Without recipes, the RoPE that the model has now is shown.
    recipes = tuple(build_recipes(values))
    shown_spec = inspection.spec
    if recipes:
        shown_spec = inspection.first_spec
        if shown_spec.scaled:
            shown_spec = shown_spec.unscaled()
    return GivenModel(
        name=inspection.source.name,
        spec=shown_spec,
        recipes=recipes,
        inspection=inspection,
    )


def frequencies_only(values: Mapping[str, Any]) -> None:
    """Raise UsageError for options of a recipe, by name, that change no frequency."""
    for name in NOT_FREQUENCIES:
        if values.get(name) is not None:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--{flag} does not change the frequencies, and nothing else is shown; leave it out"
            )


def is_length(text: str) -> bool:
    """Whether an argument is written as a number of tokens, and not as a SOURCE."""
    return re.fullmatch(r"\d+\s*[kKmM]?", text.strip()) is not None
