"""The RoPE that a recipe starts from, the schedule that follows, and how its numbers follow from each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..convert.target import Target
from ..errors import BadSource, UnsupportedBake, UsageError
from ..formats.jsontext import JsonObject
from ..inspection.inspection import ConfigInspection, Inspection, inspect_config
from ..inspection.receipts.folder import first_source
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.errors import RopeconvError
from ..rope.forms import Yarn
from ..rope.lengths import format_tokens
from ..rope.methods.interpolation import YarnMethod
from ..rope.methods.vectors import AsIs
from ..rope.on_top import total_factor
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.read_header import arch_of
from ..runtimes.read_config import number, rope_dict
from ..runtimes.verdict import describe

Pair = tuple[float, float]
"""mscale and mscale_all_dim."""


def first_inspection(source: Source, target: Target) -> tuple[ConfigInspection, ConfigInspection, Source]:
    """The inspection of a checkpoint as it is, that of what a plan starts from, and the latter itself.

    That is the first source of an output of ropeconv with `target.replace`, and the checkpoint otherwise. Raises
    BadSource where an output cannot be taken back.
    """
    first = first_source(source) if target.replace else source
    start = inspect_config(first)
    if first is source:
        return start, start, source
    try:
        return inspect_config(source), start, first
    except BadSource:  # an output whose frequencies are in its tensors, which only its own code reads
        return start, start, first


def start_spec(seen: Inspection, recipe: Recipe, target: Target) -> RopeSpec:
    """The RoPE that a recipe starts from: the only place of a plan where a scaled model becomes an unscaled one.

    seen: the inspection of the source. Raises RopeconvError for a scaled model without `target.replace` or
    `recipe.on_top`, UsageError for `recipe.on_top` without a scaling, UnsupportedBake for families for which nothing
    can be baked.
    """
    if seen.refuse:
        raise UnsupportedBake("a context extension", seen.display_name, seen.refuse, "or choose another model")
    if recipe.on_top and not seen.spec.scaled:
        raise UsageError(f"{seen.source.reference} has no scaling that --on-top could keep; leave it out")
    form, declared = seen.spec.form, seen.spec.context
    if recipe.on_top and isinstance(form, Yarn) and round(form.factor * form.original_context) > declared:
        covered = round(form.factor * form.original_context)
        raise RopeconvError(
            f"{seen.source.reference} declares {declared:,} tokens and its scaling already covers {covered:,}; declare "
            f"that first with --as-is --context {covered}, or pass --replace instead of --on-top"
        )
    if seen.extended and not (target.replace or recipe.on_top or isinstance(recipe.method, AsIs)):
        has = f"({describe(seen.spec.form)})"
        if seen.spec.scaled:
            raise RopeconvError(
                f"{seen.source.reference} is scaled already {has}; pass --replace to start from its unscaled RoPE, "
                "--on-top to go on from its scaling, or --as-is to keep the scaling it has"
            )
        raise RopeconvError(
            f"{seen.source.reference} was extended by ropeconv already {has}; pass --replace to start from its first "
            "source, or --as-is to keep the RoPE it has"
        )
    return recipe.start(seen.spec)


@dataclass(frozen=True)
class Start:
    """A source and the schedule of a recipe for it, with which every plan begins.

    seen: the inspection of the source as it is. recipe: with the mscale pair that it inherits from the source. spec:
    the RoPE that it starts from. schedule: of the output. notes: how its numbers follow from each other.
    """

    seen: Inspection
    recipe: Recipe
    spec: RopeSpec
    schedule: Schedule
    notes: tuple[str, ...]


def begin(seen: Inspection, first: Inspection, recipe: Recipe, target: Target, mscale: Pair | None) -> Start:
    """The start of a plan.

    seen: the inspection of the source as it is. first: of what the plan starts from. mscale: the pair of the source.
    Raises what `start_spec` raises, UsageError where the output would declare fewer tokens than the source and no
    `--context` asks for it, RecipeError as `Recipe.schedule`.
    """
    spec, given = start_spec(first, recipe, target), recipe
    recipe = inherit_mscale(recipe, mscale)
    schedule, today = recipe.schedule(spec, first.spec), seen.spec.context
    if recipe.context is None and schedule.context < today:
        repair, meant = _repair(recipe, spec, today), format_tokens(schedule.context)
        raise UsageError(
            f"the result declares {schedule.context:,}, less than today's {today:,}; pass {repair}, or "
            f"--context {meant} if you mean it"
        )
    notes = (
        *filter(None, (first.assumption,)),
        *_derivation(seen, recipe, spec),
        *_inherited_notes(given, recipe, schedule),
    )
    return Start(seen, recipe, spec, schedule, notes)


def _repair(recipe: Recipe, spec: RopeSpec, today: int) -> str:
    """The flags that go beyond today's context: by the factor that was given, or to twice of it."""
    length = recipe.method.length
    factor = None if length else recipe.method.factor_over(spec.original_context)
    longer = round(today * factor) if factor and factor > 1 else 2 * today
    return recipe.method.longer(longer, spec.original_context) or f"--context {format_tokens(today)} to keep that"


def _derivation(seen: Inspection, recipe: Recipe, spec: RopeSpec) -> list[str]:
    """Sentences on the factor: from which length over which it follows, and what scaling stays or goes."""
    method, source = recipe.method, seen.spec
    trained = recipe.original_context or spec.original_context
    if recipe.on_top:
        return [_on_top(recipe, source)]
    factor, length = method.factor_over(trained), method.length
    if factor is None or (length is None and not source.scaled):
        return []
    reached = length or round(trained * factor)
    found = f"factor {factor:.6g} = {reached:,} / {trained:,} trained tokens"
    if source.scaled:
        found += (
            f"; {trained:,} is the length before the {source.form.kind} scaling that --replace removes, with which "
            f"the model declares {source.context:,}"
        )
    return [found]


def _on_top(recipe: Recipe, source: RopeSpec) -> str:
    """The sentence on what goes on top of a scaling."""
    relative = recipe.method.relative(source.context, source.original_context)
    factor = relative.factor_over(source.original_context)
    kept = f"the {source.form.kind} scaling is kept"
    if factor is None:
        return kept
    over = f"{factor:.6g} = {source.context * factor:,.0f} / {source.context:,} declared tokens"
    product = total_factor(recipe.method, source)
    if product is None:
        return f"{kept}, and {recipe.method.name} goes on top of it with factor {over}"
    return f"{kept} with factor {product[0] * factor:.6g} = {product[0]:.6g} x {factor:.6g} ({over})"


def uncovered(recipe: Recipe, seen: Inspection, spec: RopeSpec) -> list[str]:
    """The warning of a factor with which the method does not reach `--context`; empty where it does.

    recipe, spec: as in `Start`. seen: the inspection of the source as it is.
    """
    meant = getattr(recipe.method, "target", None) or getattr(recipe.method, "at", None)
    if meant is not None and recipe.context is not None and meant < recipe.context:
        flag = recipe.method.flag()
        return [f"{flag}: it is made for {meant:,} tokens, which does not cover --context {recipe.context:,}"]
    over = seen.spec.context if recipe.on_top else recipe.original_context or spec.original_context
    what = "declared" if recipe.on_top else "trained"
    factor = recipe.method.factor_over(over, what)
    if factor is None or recipe.context is None or round(over * factor) >= recipe.context:
        return []
    reached = f"{factor:.6g} x {over:,} {what} tokens is {over * factor:,.0f}"
    repair = recipe.method.longer(recipe.context, spec.original_context)
    return [f"{recipe.method.flag()}: {reached}, which does not cover --context {recipe.context:,}; pass {repair}"]


def mscale_of_config(config: JsonObject, seen: ConfigInspection) -> Pair | None:
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


def _inherited_notes(given: Recipe, recipe: Recipe, schedule: Schedule) -> list[str]:
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
