"""What would make a runtime compute a checkpoint that it does not read right as it is."""

from __future__ import annotations

from collections.abc import Iterator

from ..encode import CheckpointResult, Target
from ..errors import RopeconvError
from ..inspection import Problem
from ..inspection.inspect import ConfigInspection
from ..rope.errors import RecipeError
from ..rope.methods.ntk import Ntk
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..runtimes import Runtime, newest, runtimes
from ..runtimes.verdict import Verdict
from ..sources import Source
from .planner import make_plan

WRONG = ("differs", "ignored", "refused")


def repairs(source: Source, seen: ConfigInspection) -> Iterator[Problem]:
    """A problem per newest row of a runtime that does not compute the checkpoint and that something would help.

    source: the checkpoint. seen: its inspection.
    """
    if seen.refuse:
        return
    wrong: dict[str, Verdict] = {}
    for name in dict.fromkeys(row.name for row in runtimes()):
        verdict = next(one for one in reversed(seen.verdicts) if one.covers(newest(name)))
        if verdict.status in WRONG:
            wrong[name] = verdict
    candidates = _candidates(seen)
    for name, verdict in wrong.items():
        found = next((flags for flags, recipe in candidates if _helps(source, recipe, newest(name))), "")
        if found:
            message = f"{verdict.display_name}: {verdict.status}, {verdict.reason}"
            yield Problem("runtime", message, f"{found} --runtime {name}")


def _candidates(seen: ConfigInspection) -> list[tuple[str, Recipe]]:
    """Recipes that give a runtime the same context: the same RoPE in both schemas, else one that only needs a base."""
    found = [("--as-is", Recipe(AsIs()))]
    spec = seen.spec
    if spec.scaled and spec.context > spec.original_context:
        factor = spec.context / spec.original_context
        found.append((f"--ntk {factor:g} --replace", Recipe(Ntk(factor))))
    return found


def _helps(source: Source, recipe: Recipe, runtime: Runtime) -> bool:
    replaces = recipe.method.name != "as-is"
    try:
        plan = make_plan(source, recipe, Target(to="safetensors", runtimes=(runtime.key,), replace=replaces))
    except (RopeconvError, RecipeError):
        return False
    return isinstance(plan.result, CheckpointResult) and plan.result.status_of(runtime) in ("exact", "rounded")
