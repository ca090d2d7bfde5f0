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

    source: RopeSpec
    """Its RoPE unchanged."""

    inspection: Inspection | None = None
    """None for a model given by numbers."""

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedule of each recipe, by its label.

        Without recipes it is the schedule that the model has now, by the model's name.
        """
        if not self.recipes:
            return {self.name: self.spec.current()}

        schedules: dict[str, Schedule] = {}  # e.g. {"yarn4": ..., "ntk4": ...}
        for recipe in self.recipes:
            # The RoPE that the recipe changes. A model that ropeconv has extended has the RoPE of
            # its source here, unless the recipe extends it further (`on_top`).
            rope = self.source
            if self.inspection is not None:
                rope = self.inspection.basis(recipe)
            # the same RoPE without its scaling, unless the recipe keeps the scaling
            unscaled = recipe.start(rope)

            label = recipe.method.label
            if label in schedules:  # the same method, from a --recipe with other settings
                label = f"{label}-{len(schedules)}"
            schedules[label] = recipe.schedule(unscaled, rope)
        return schedules


def in_numbers(values: dict[str, Any], head_dim: int | None, rotary_dim: int | None) -> GivenModel:
    """Return a model that is given by numbers instead of a config, with the recipes for it.

    `--theta` is the base of the model (default 10000), and `--original-context` its trained length
    (default 4096). Methods are those of the other options:

    - `ropeconv plot --theta 1e6 --yarn 4` is a model with the base 1e6, and YaRN for it.
      `--context` is then the length that YaRN reaches.
    - `ropeconv plot --theta 1e6` is a model with the base 1e6, and the method `--theta` that sets
      the same base.
    - `ropeconv plot --context 128k` has no method. It is a model that declares this length.

    Args:
        values: The options of recipes, by name.
        head_dim: The width of one attention head, by default 128.
        rotary_dim: How many of its dimensions rotate, by default all.

    Raises:
        UsageError: For a base of 1 or less, and as `head_size` and `build_recipes` do.
    """
    # the recipes, from the options that are not those of the model
    theta = values.get("theta")
    without_theta = {**values, "theta": None}
    has_other_method = bool(chosen_methods(without_theta))
    if has_other_method:
        recipe_values = without_theta
    elif theta is not None:  # --theta is the method
        recipe_values = values
    else:  # no method
        recipe_values = {**values, "context": None, "original_context": None}
    trained = parse_tokens(values.get("original_context") or "4096")
    recipes = build_recipes(recipe_values)

    # the lengths, widths and base of the model
    declared = trained
    if not recipes and values.get("context") is not None:
        declared = parse_tokens(values["context"])
    width, rotary = head_size(head_dim, rotary_dim)
    base = 10000.0 if theta is None else theta
    if base <= 1:
        raise UsageError(f"--theta {base:g} must be above 1")
    spec = RopeSpec(
        head_dim=width,
        rotary_dim=rotary,
        form=Plain(base),
        original_context=trained,
        context=declared,
    )
    return GivenModel(name=f"theta {base:.12g}", spec=spec, recipes=tuple(recipes), source=spec)


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
        source=inspection.spec,  # as it is declared now, for recipes on top of it
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
