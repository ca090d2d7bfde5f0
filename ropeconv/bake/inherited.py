"""Settings that a recipe takes over from its source: the pair mscale and mscale_all_dim of DeepSeek and Ministral 3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..families.config import text_part
from ..inspection.inspect import ConfigInspection, Inspection
from ..rope.methods.parts import YarnMethod
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..runtimes.llamacpp.read_file import arch_of
from ..runtimes.read_config import rope_dict
from ..runtimes.read_form import number
from ..sources import Source
from ..sources.gguf import GgufSource

Pair = tuple[float, float]


def mscale_of_config(config: dict[str, Any], seen: ConfigInspection) -> Pair | None:
    """The pair (mscale, mscale_all_dim) of a checkpoint; None without it.

    config: of the source. seen: its inspection. Raises BadSource for a value that is no number.
    """
    found, _ = rope_dict(text_part(config, seen.family), seen.family)
    if not found.get("mscale_all_dim"):
        return None
    return number(found, "mscale", 1.0), number(found, "mscale_all_dim")


def mscale_of_gguf(source: GgufSource) -> Pair | None:
    """The pair of a GGUF file from rope.scaling.yarn_log_multiplier; None without that key.

    deepseek2 takes mscale for as large as mscale_all_dim, the others for 1 (src/llama-context.cpp:187-196).
    """
    arch = arch_of(source.file)
    found = source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier") if arch.log_multiplier else None
    mscale = found / 0.1 if found and arch.softmax else found
    return (mscale if arch.same_mscale else 1.0, mscale) if mscale else None


def mscale_of(source: Source | GgufSource, seen: Inspection) -> Pair | None:
    """The pair of a source of either kind. seen: its inspection. Raises BadSource for a value that is no number."""
    if isinstance(source, GgufSource):
        return mscale_of_gguf(source)
    return mscale_of_config(source.config(), seen) if isinstance(seen, ConfigInspection) else None


def inherit_mscale(recipe: Recipe, pair: Pair | None) -> Recipe:
    """The recipe with the mscale pair of its source, for YaRN without a pair of its own; others as they are.

    The source was trained with the attention factor and the softmax scale that follow from it.
    """
    method = recipe.method
    if pair is None or not isinstance(method, YarnMethod) or method.mscale is not None:
        return recipe
    return replace(recipe, method=replace(method, mscale=pair[0], mscale_all_dim=pair[1]))


def inherited_notes(given: Recipe, recipe: Recipe, schedule: Schedule) -> list[str]:
    """A sentence on an inherited pair and what follows from it; none where nothing was inherited.

    given: the recipe before `inherit_mscale`, and recipe: after it. schedule: of the output.
    """
    method = recipe.method
    if recipe == given or not isinstance(method, YarnMethod):
        return []
    follows = f"attention_factor {schedule.attention_factor:.5g}"
    if schedule.softmax_scale != 1:
        follows += f", softmax_scale {schedule.softmax_scale:.5g}"
    return [f"mscale {method.mscale:g} and mscale_all_dim {method.mscale_all_dim:g} are the model's own: {follows}"]
