"""What would make a runtime compute a checkpoint that it does not read right as it is."""

from __future__ import annotations

from collections.abc import Iterator

from ..encode import EncodeRequest, Target, select
from ..encode.target import DualChunk
from ..errors import RopeconvError
from ..families.config import Config
from ..inspection import Inspection, Problem
from ..inspection.inspect import ConfigInspection
from ..rope.errors import RecipeError
from ..rope.methods.ntk import Ntk
from ..rope.methods.special import AsIs
from ..rope.recipe import Recipe
from ..runtimes import Runtime, newest, runtimes
from ..runtimes.rules import GOOD, WRONG
from ..runtimes.verdict import Verdict
from ..sources import GgufSource, Source


def repairs_of(source: Source | GgufSource, seen: Inspection) -> tuple[Problem, ...]:
    """What `repairs` finds for a checkpoint; nothing for a GGUF file. source: the model. seen: its inspection."""
    if isinstance(source, Source) and isinstance(seen, ConfigInspection):
        return tuple(repairs(source.config(), seen))
    return ()


def repairs(config: Config, seen: ConfigInspection) -> Iterator[Problem]:
    """A problem per newest row of a runtime that does not compute the checkpoint and that another config would help.

    config: the whole config.json. seen: its inspection. Weights are not looked at, not even their headers.
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
        row = newest(name)
        helping = (flags for flags, recipe, chunks in candidates if _helps(config, seen, row, recipe, chunks))
        found = next(helping, "")
        if found:
            message = f"{verdict.display_name}: {verdict.status}, {verdict.reason}"
            yield Problem("runtime", message, f"{found} --runtime {name}")


def _candidates(seen: ConfigInspection) -> list[tuple[str, Recipe, DualChunk | None]]:
    """Recipes that give a runtime the same context: the same RoPE in both schemas, else one that only needs a base."""
    found: list[tuple[str, Recipe, DualChunk | None]] = [("--as-is", Recipe(AsIs()), None)]
    if any(problem.code == "dual-chunk" for problem in seen.problems):
        found.append(("--as-is --dual-chunk drop", Recipe(AsIs()), "drop"))
    spec = seen.spec
    if spec.scaled and spec.context > spec.original_context:
        factor = spec.context / spec.original_context
        found.append((f"--ntk {factor:g} --replace", Recipe(Ntk(factor)), None))
    return found


def _helps(
    config: Config, seen: ConfigInspection, runtime: Runtime, recipe: Recipe, dual_chunk: DualChunk | None
) -> bool:
    spec = seen.spec if isinstance(recipe.method, AsIs) else seen.spec.unscaled()
    target = Target(runtimes=(runtime.key,), dual_chunk=dual_chunk)
    try:
        result = select(EncodeRequest(recipe.schedule(spec), spec, seen.family, config, target))
    except (RopeconvError, RecipeError):
        return False
    return result.status_of(runtime) in GOOD
