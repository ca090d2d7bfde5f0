"""Candidate, a recipe with its schedule; and Start, the model that recipes are for, with the formulas to begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import RecipeError
from ..evaluate.row import BASE
from ..rope.forms import Vector, base_inv_freq
from ..rope.methods import REGISTRY
from ..rope.methods.vectors import LongRopeMethod
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..rope.still_pairs import rotating

FORMULAS = ("linear", "ntk", "ntk-old", "ntk-fixed", "mixed", "by-parts", "yarn")
"""Methods that are compared before a search, each with the factor that reaches the context."""
DIGITS = 9
"""Of the numbers in a recipe that was found: float32 has fewer."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A recipe. name: for tables. recipe: None for the model as it is. schedule: what it computes."""

    name: str
    recipe: Recipe | None
    schedule: Schedule

    @property
    def method(self) -> str:
        """The name of its method; empty for the model as it is."""
        return self.recipe.method.name if self.recipe else ""


@dataclass(frozen=True)
class Start:
    """The model that recipes are for.

    spec: its unscaled RoPE. context: tokens to reach. schedule: of a recipe for this model.
    """

    spec: RopeSpec
    context: int
    schedule: Callable[[Recipe], Schedule]

    @property
    def factor(self) -> float:
        """s, the context over the trained one."""
        return self.context / self.spec.original_context

    @property
    def base(self) -> Vector:
        """The unscaled frequencies of the pairs that rotate, radians per token, float64."""
        return base_inv_freq(self.spec.rope_theta, self.spec.rotary_dim)[: rotating(self.spec)]

    def candidate(self, recipe: Recipe, name: str = "") -> Candidate:
        """A recipe with its schedule. name: for tables. Raises RecipeError where it does not fit the model."""
        return Candidate(name, recipe, self.schedule(recipe))

    def formula(self, method: str) -> Candidate:
        """A method with the factor that reaches the context. method: its name."""
        made = REGISTRY[method].reaching(self.spec, self.context)
        if made is None:
            raise RecipeError(f"{method} has no single number that reaches a length")
        return self.candidate(Recipe(made, context=self.context), f"{method} {self.factor:.6g}")

    def unscaled(self) -> Candidate:
        """The model without any extension."""
        return Candidate(BASE, None, replace(self.spec.current(), context=self.context))

    def formulas(self) -> list[Candidate]:
        """The methods of FORMULAS."""
        return [self.formula(name) for name in FORMULAS]

    def divisors(self, schedule: Schedule) -> Vector:
        """theta_i / inv_freq_i of the pairs that rotate, float64. schedule: of this model."""
        return np.asarray(self.base / schedule.inv_freq[: len(self.base)], dtype=np.float64)

    def factors(self, divisors: Sequence[float] | Vector, attention_factor: float, name: str = "") -> Candidate:
        """A list of divisors as a recipe, rounded to what a file keeps.

        divisors: of the pairs that rotate. attention_factor: multiplies cos and sin. name: for tables.
        """
        rounded = tuple(float(f"{value:.{DIGITS}g}") for value in divisors)
        recipe = Recipe(
            LongRopeMethod(rounded), context=self.context, attention_factor=float(f"{attention_factor:.{DIGITS}g}")
        )
        return self.candidate(recipe, name)
