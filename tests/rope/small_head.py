"""A model with a head of 8 dimensions, whose frequencies can be written down, and schedules for
it.
"""

from typing import Any

from ropeconv.rope.forms import Plain
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

from ..support.baking import recipe_of

THETA, TRAINED = 10000.0, 4096


def spec(**changes: Any) -> RopeSpec:
    given = {
        "head_dim": 8,
        "rotary_dim": 8,
        "form": Plain(THETA),
        "original_context": TRAINED,
        "context": TRAINED,
    }
    return RopeSpec(**{**given, **changes})


def made(method: str, *values: object, of: RopeSpec | None = None, **modifiers: Any) -> Schedule:
    return recipe_of(method, *values, **modifiers).schedule(of or spec())


BASE = [1.0, 0.1, 0.01, 0.001]
"""10000^(-2i/8)."""
