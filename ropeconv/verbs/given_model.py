"""GivenModel: the model of `bound` and `plot`, on disk or given by numbers, with its recipes."""

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
    """A model and the recipes for it.

    name: for display. spec: its RoPE, unscaled where there are recipes. recipes: for it. source:
    its RoPE unchanged. inspection: of a SOURCE, None for a model given by numbers.
    """

    name: str
    spec: RopeSpec
    recipes: tuple[Recipe, ...]
    source: RopeSpec
    inspection: Inspection | None = None

    def schedules(self) -> dict[str, Schedule]:
        """The schedule of each recipe, in their order, by its label; without any the schedule that
        the model has.
        """
        schedules: dict[str, Schedule] = {} if self.recipes else {self.name: self.spec.current()}
        for recipe in self.recipes:
            label = recipe.method.label
            basis = self.inspection.basis(recipe) if self.inspection else self.source
            label = label if label not in schedules else f"{label}-{len(schedules)}"
            schedules[label] = recipe.schedule(recipe.start(basis), basis)
        return schedules


def in_numbers(values: dict[str, Any], head_dim: int | None, rotary_dim: int | None) -> GivenModel:
    """A model that is given by numbers.

    `--theta` is the model's base (default 10000), unless it is the only method;
    `--original-context` its trained length (default 4096).
    """
    theta = values.get("theta")
    others = {**values, "theta": None}
    if not chosen_methods(others):
        # --theta is the method then; without it lengths are those of the model
        if theta is not None:
            others = values
        else:
            others = {**values, "context": None, "original_context": None}
    trained = parse_tokens(values.get("original_context") or "4096")
    declared = trained if values.get("context") is None else parse_tokens(values["context"])
    recipes = build_recipes(others)
    width, rotary = head_size(head_dim, rotary_dim)
    base = 10000.0 if theta is None else theta
    if base <= 1:
        raise UsageError(f"--theta {base:g} must be above 1")
    spec = RopeSpec(width, rotary, Plain(base), trained, trained if recipes else declared)
    return GivenModel(f"theta {base:.12g}", spec, tuple(recipes), spec)


def head_size(head_dim: int | None, rotary_dim: int | None) -> tuple[int, int]:
    """head_dim and rotary_dim, by default 128 and all of it. Raises UsageError where they do not
    fit together.
    """
    width = 128 if head_dim is None else head_dim
    rotary = width if rotary_dim is None else rotary_dim
    if width > WIDEST_HEAD:
        raise UsageError(
            f"--head-dim {width} must be at most {WIDEST_HEAD}: published models have heads of up"
            " to 576 dimensions"
        )
    if rotary < 2 or rotary % 2 or rotary > width:
        raise UsageError(
            f"--rotary-dim {rotary} must be even, at least 2, and not above --head-dim {width}"
        )
    return width, rotary


def find(
    argument: str | None, values: dict[str, Any], head_dim: int | None, rotary_dim: int | None
) -> GivenModel:
    """The model that a command line names; recipes for one on disk or on the Hub start from its
    unscaled RoPE.

    Raises UsageError for options that have no effect, BadSource as `inspect_source` does.
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
    """Return a model on disk or on the Hub, with the recipes for it. values: of options."""
    recipes = tuple(build_recipes(values))
    first = inspection.first_spec
    spec = inspection.spec
    if recipes:
        spec = first.unscaled() if first.scaled else first
    return GivenModel(inspection.source.name, spec, recipes, inspection.spec, inspection)


def frequencies_only(values: Mapping[str, Any]) -> None:
    """Raises UsageError for options of a recipe that change no frequency. values: of options, by
    name.
    """
    for name in NOT_FREQUENCIES:
        if values.get(name) is not None:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--{flag} does not change the frequencies, and nothing else is shown; leave it out"
            )


def is_length(text: str) -> bool:
    """Whether an argument is written as a number of tokens, and not as a SOURCE."""
    return re.fullmatch(r"\d+\s*[kKmM]?", text.strip()) is not None
