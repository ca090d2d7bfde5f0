"""The warnings of a plan: sentences about what may surprise its user, those that matter most first."""

from __future__ import annotations

from collections.abc import Iterator

from ..inspection import Inspection
from ..inspection.layers import cannot_gain
from ..rope.bound import worse_than_source
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .start import uncovered

DROPE = "(DroPE, https://arxiv.org/abs/2512.12167)"
CARRIED_OVER = ("load", "trained", "stale-inv-freq", "ignored-tensor")
"""Problems of a source, by code, that its outputs have as well."""


def warnings(seen: Inspection, recipe: Recipe, spec: RopeSpec, schedule: Schedule) -> list[str]:
    """The warnings of a plan as sentences, the most important first.

    seen: the inspection of the source. spec: the RoPE that the recipe starts from. schedule: of the output.
    """
    return [*uncovered(recipe, seen, spec), *_warnings(seen, recipe, schedule)]


def _warnings(seen: Inspection, recipe: Recipe, schedule: Schedule) -> Iterator[str]:
    spec, changes = seen.spec, not isinstance(recipe.method, AsIs)
    if changes and (useless := cannot_gain(spec, schedule.context)):
        yield useless
    if worse := worse_than_source(schedule, spec):
        yield worse
    if not schedule.inv_freq.any():
        yield f"no pair rotates: only the causal mask says which token comes first, which takes training {DROPE}"
    if schedule.context == spec.context and recipe.method.name == "theta" and recipe.context is None:
        yield f"the context stays {schedule.context:,}; pass --context to declare a longer one"
    carried = [problem for problem in seen.problems if problem.code in CARRIED_OVER]
    for problem in sorted(carried, key=lambda one: CARRIED_OVER.index(one.code)):
        yield problem.message
    if seen.custom_code:
        yield seen.custom_code


def list_notes(schedule: Schedule) -> tuple[str, ...]:
    """What llama.cpp does with two factor lists; empty for one."""
    if schedule.short_inv_freq is None:
        return ()
    length = schedule.original_context
    return (
        f"llama.cpp takes the short list when it is started with a window of up to {length:,} tokens and the long one "
        "with a larger one, for every prompt, so that no cache ever holds both",
    )
