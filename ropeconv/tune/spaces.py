"""The parameters of methods that can be tuned, and the ranges in which they are looked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..rope.methods import REGISTRY
from ..rope.recipe import Recipe
from .candidate import Start


@dataclass(frozen=True)
class Parameter:
    """A number of a method.

    name: of the field. low, high: ends of its range. log: whether its logarithm is even over it. power: of the scale
    factor s by which the range is multiplied, 0 for none. of_base: whether it is multiplied by the model's own theta.
    """

    name: str
    low: float
    high: float
    log: bool = True
    power: float = 0.0
    of_base: bool = False

    def ends(self, start: Start) -> tuple[float, float]:
        """The range for a model. start: with its context."""
        unit = start.factor**self.power * (start.spec.rope_theta if self.of_base else 1.0)
        return self.low * unit, self.high * unit


FACTOR = Parameter("factor", 0.5, 4.0, power=1)
SPACES: dict[str, tuple[Parameter, ...]] = {
    "theta": (Parameter("base", 1.0, 16.0, power=1, of_base=True),),
    "linear": (FACTOR,),
    "ntk": (FACTOR,),
    "mixed": (FACTOR, Parameter("mixed_exponent", 0.0, 1.0, log=False)),
    "by-parts": (FACTOR, Parameter("alpha", 0.1, 4.0), Parameter("beta", 4.5, 128.0)),
    "yarn": (FACTOR, Parameter("beta_slow", 0.1, 4.0), Parameter("beta_fast", 4.5, 128.0)),
    "llama3": (FACTOR, Parameter("low_freq_factor", 0.1, 2.0), Parameter("high_freq_factor", 2.5, 64.0)),
}
"""By the name of the method."""
ATTENTION = Parameter("attention_factor", 0.8, 1.5)
"""Tuned with every method unless it is given; YaRN's is sqrt(1/t), so this is its temperature."""


def recipe_of(method: str, values: dict[str, float], context: int, attention_factor: float | None) -> Recipe:
    """A recipe from numbers.

    method: its name. values: by the names of its parameters, and the attention factor where it is tuned. context:
    tokens to reach. attention_factor: where it is given; None for that of `values`, else of the method.
    """
    own: dict[str, Any] = {name: value for name, value in values.items() if name != ATTENTION.name}
    if "factor" in own:
        own["factor"] = max(own["factor"], 1.0)
    chosen = values.get(ATTENTION.name) if attention_factor is None else attention_factor
    return Recipe(REGISTRY[method](**own), context=context, attention_factor=chosen)
