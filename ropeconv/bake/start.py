"""The RoPE that a recipe starts from, the schedule that follows, and how its numbers are
derived.
"""

from dataclasses import dataclass, replace

from ..convert.encoding import why_no_attention_factor
from ..convert.target import Target
from ..errors import BadSource, UnsupportedBake, UsageError
from ..inspection.inspection import ConfigInspection, Inspection, inspect_config
from ..inspection.receipts.folder import first_source
from ..inspection.receipts.receipt import FineTuningRecord
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.errors import RopeconvError, counted
from ..rope.forms import Yarn
from ..rope.lengths import format_tokens
from ..rope.methods.interpolation import YarnMethod
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe, total_factor
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.read_header import arch_of
from ..runtimes.read_config import number, rope_dict
from ..runtimes.verdict import describe, unseen_wrapper
from .fine_tuning import fine_tuning_for


def first_inspection(
    source: Source, target: Target
) -> tuple[ConfigInspection, ConfigInspection, Source]:
    """Return the inspection of a checkpoint, that of the start of a plan, and the checkpoint of the
    latter.

    That is the first source of an output of ropeconv with `target.replace`, and the checkpoint
    otherwise. Raises BadSource where an output cannot be undone.
    """
    first = first_source(source) if target.replace else source
    start = inspect_config(first)
    if first is source:
        return start, start, source
    try:
        return inspect_config(source), start, first
    except (
        BadSource
    ):  # an output whose frequencies are in its tensors, which only its own code reads
        return start, start, first


class AlreadyExtended(RopeconvError):
    """A model that was extended before. short: the message without the options that only `apply`
    has.
    """

    def __init__(self, message: str, short: str = "") -> None:
        super().__init__(message)
        self.short = short


def start_spec(inspection: Inspection, recipe: Recipe, target: Target) -> RopeSpec:
    """Return the RoPE that a recipe starts from: the only place of a plan where a scaled model
    becomes an unscaled one.

    Raises RopeconvError for a scaled model without `target.replace` or `recipe.on_top`, UsageError
    for `recipe.on_top` without a scaling, UnsupportedBake for families for which nothing can be
    baked, BadSource for a text model inside a model that no runtime was seen to load.
    """
    reference = inspection.source.reference
    if inspection.refuse:
        raise UnsupportedBake(
            "a context extension",
            inspection.display_name,
            inspection.refuse,
            "or choose another model",
        )
    if isinstance(inspection, ConfigInspection) and isinstance(inspection.source, Source):
        unseen = unseen_wrapper(inspection.source.config(), inspection.model_family)
        if unseen:
            raise BadSource(
                f"{unseen}; pass --family {inspection.name} to treat its text model as that, which"
                " is untested, or give the text model as a checkpoint of its own"
            )
    if recipe.on_top and not inspection.spec.scaled:
        raise UsageError(f"{reference} has no scaling that --on-top could keep; leave it out")
    form = inspection.spec.form
    declared = inspection.spec.context
    if (
        recipe.on_top
        and isinstance(form, Yarn)
        and round(form.factor * form.original_context) > declared
    ):
        covered = round(form.factor * form.original_context)
        raise RopeconvError(
            f"{reference} declares {declared:,} tokens and its scaling already covers {covered:,};"
            f" declare that first with --as-is --context {covered}, or pass --replace instead of"
            " --on-top"
        )
    if inspection.extended and not (
        target.replace or recipe.on_top or isinstance(recipe.method, AsIs)
    ):
        has = f"({describe(inspection.spec.form)})"
        if inspection.spec.scaled:
            short = (
                f"{reference} is scaled already {has}; pass --replace to start from its unscaled"
                " RoPE"
            )
            raise AlreadyExtended(
                f"{short}, --on-top to extend its scaling, or --as-is to keep the scaling it has",
                short,
            )
        short = (
            f"{reference} was extended by ropeconv already {has}; pass --replace to start from its"
            " first source"
        )
        raise AlreadyExtended(f"{short}, or --as-is to keep the RoPE it has", short)
    return recipe.start(inspection.spec)


@dataclass(frozen=True)
class PlanStart:
    """A source and the schedule of a recipe for it, with which every plan begins.

    recipe: with the mscale pair that it inherits from the source. spec: the RoPE that it starts
    from. notes: how its numbers are derived. fine_tuning: what the recipe needs at its length.
    """

    recipe: Recipe
    spec: RopeSpec
    schedule: Schedule
    notes: tuple[str, ...]
    fine_tuning: FineTuningRecord


def begin(inspection: Inspection, first: Inspection, recipe: Recipe, target: Target) -> PlanStart:
    """Return the start of a plan.

    first: the inspection of what the plan starts from. Raises what `start_spec` raises, UsageError
    where the output would declare fewer tokens than the source and no `--context` asks for it,
    RecipeError as `Recipe.schedule`.
    """
    spec = start_spec(first, recipe, target)
    with_mscale = inherit_mscale(recipe, first)
    inherited = keep_attention_factor(with_mscale, first)
    schedule = inherited.schedule(spec, first.spec)
    today = inspection.spec.context
    if recipe.context is None and schedule.context < today:
        shorter = format_tokens(schedule.context)
        factor = None if recipe.method.length else recipe.method.factor_over(spec.original_context)
        longer = round(today * factor) if factor and factor > 1 else 2 * today
        repair = (
            inherited.method.longer(longer, spec.original_context)
            or f"--context {format_tokens(today)} to keep that"
        )
        raise UsageError(
            f"the result declares {schedule.context:,}, less than today's {today:,}; pass {repair},"
            f" or --context {shorter} if you mean it"
        )
    if not isinstance(recipe.method, AsIs) and (
        unseen := nothing_to_extend(first, schedule.context)
    ):
        raise RopeconvError(f"{first.source.reference} cannot be extended: {unseen}")
    notes = [*filter(None, (first.assumption,)), *_derivation(inspection, inherited, spec)]
    method = inherited.method
    if inherited != with_mscale:
        notes.append(
            f"{first.name} has no attention factor of the method: it keeps"
            f" {spec.attention_factor:.5g}"
        )
    if with_mscale != recipe and isinstance(method, YarnMethod):
        factors = f"attention_factor {schedule.attention_factor:.5g}"
        if schedule.softmax_scale != 1:
            factors += f", softmax_scale {schedule.softmax_scale:.5g}"
        pair = f"mscale {method.mscale:g} and mscale_all_dim {method.mscale_all_dim:g}"
        notes.append(f"{pair} are the model's own: {factors}")
    need = fine_tuning_for(inherited, first, schedule)
    return PlanStart(inherited, spec, schedule, tuple(notes), need)


def nothing_to_extend(inspection: Inspection, context: int) -> str:
    """Return why no method can change what a model sees, and what can be done; empty where one can.

    A window that a whole family has is only a note: it is a setting, which some runtimes ignore
    (`cannot_gain`). context: the tokens that the output would declare.
    """
    spec = inspection.spec
    layers = f"none of the {counted(len(spec.layers), 'layer')}"
    declare = f"--as-is --context {context} declares the length without it"
    if spec.layers and not spec.count("global"):
        why = (
            f"each sees a {spec.window_kind} with its own"
            if spec.count("local")
            else "none rotates"
        )
        return f"{layers} has the RoPE that a method changes ({why}); {declare}"

    windows = [window for window in spec.windows if window is not None and window < context]
    by_layer = (
        not isinstance(inspection, ConfigInspection)
        or inspection.model_family.window.layers != "all"
    )
    if not spec.layers or len(windows) < len(spec.layers) or not by_layer:
        return ""
    return (
        f"{layers} sees the whole context, only {max(windows):,} tokens ({spec.window_kind}), so a"
        f" method adds nothing beyond them; {declare}"
    )


def _derivation(inspection: Inspection, recipe: Recipe, spec: RopeSpec) -> list[str]:
    """Sentences on the factor: its two lengths, and which scaling is kept or removed."""
    method, source = recipe.method, inspection.spec
    trained = recipe.original_context or spec.original_context
    if recipe.on_top:
        kept = f"the {source.form.kind} scaling is kept"
        over = source.context
        factor = method.relative(over, source.original_context).factor_over(source.original_context)
        if factor is None:
            return [kept]
        words = f"{factor:.6g} = {over * factor:,.0f} / {over:,} declared tokens"
        product = total_factor(method, source)
        if product is None:
            return [f"{kept}, and {method.name} is applied on top of it with factor {words}"]
        return [
            f"{kept} with factor {product[0] * factor:.6g} = {product[0]:.6g} x {factor:.6g}"
            f" ({words})"
        ]
    factor = method.factor_over(trained)
    length = method.length
    if factor is None or (length is None and not source.scaled):
        return []
    reached = length or round(trained * factor)
    sentence = f"factor {factor:.6g} = {reached:,} / {trained:,} trained tokens"
    if source.scaled:
        sentence += (
            f"; {trained:,} is the length before the {source.form.kind} scaling that --replace"
            f" removes, with which the model declares {source.context:,}"
        )
    return [sentence]


def uncovered(recipe: Recipe, inspection: Inspection, spec: RopeSpec) -> list[str]:
    """Return the warning of a factor with which the method does not reach `--context`; empty where
    it does.
    """
    meant = getattr(recipe.method, "target", None) or getattr(recipe.method, "at", None)
    if meant is not None and recipe.context is not None and meant < recipe.context:
        flag = recipe.method.flag()
        return [
            f"{flag}: it is made for {meant:,} tokens, which does not cover --context"
            f" {recipe.context:,}"
        ]
    over = (
        inspection.spec.context
        if recipe.on_top
        else recipe.original_context or spec.original_context
    )
    kind = "declared" if recipe.on_top else "trained"
    factor = recipe.method.factor_over(over, kind)
    if factor is None or recipe.context is None or round(over * factor) >= recipe.context:
        return []
    reached = f"{factor:.6g} x {over:,} {kind} tokens is {over * factor:,.0f}"
    repair = recipe.method.longer(recipe.context, spec.original_context)
    return [
        f"{recipe.method.flag()}: {reached}, which does not cover --context {recipe.context:,};"
        f" pass {repair}"
    ]


def keep_attention_factor(recipe: Recipe, inspection: Inspection) -> Recipe:
    """Return the recipe with the attention factor of a scaled source, where its model can have no
    other.

    Norms after the rotation cancel any, and DeepSeek V4 is computed without one. The scaling that
    `--on-top` keeps has then none of a method either; without `--on-top` the user has to say so.
    """
    chosen = (recipe.attention_factor, recipe.temperature_slope, recipe.temperature_intercept)
    if not recipe.on_top or chosen != (None, None, None):
        return recipe
    source = inspection.source
    if isinstance(source, GgufSource):
        arch = arch_of(source.file)
        fixed = arch.norm_after_rope or arch.no_attention_factor
    else:
        assert isinstance(source, Source)
        assert isinstance(inspection, ConfigInspection)
        fixed = bool(why_no_attention_factor(source.config(), inspection.model_family))
    return replace(recipe, attention_factor=inspection.spec.attention_factor) if fixed else recipe


def inherit_mscale(recipe: Recipe, inspection: Inspection) -> Recipe:
    """Return the recipe with the mscale pair of its source, for YaRN without a pair of its own;
    others do not change.

    The source was trained with the attention factor and the softmax scale that follow from it. A
    GGUF file has it as rope.scaling.yarn_log_multiplier: deepseek2 uses mscale = mscale_all_dim,
    the others 1 (src/llama-context.cpp:187-196). Raises BadSource for a non-number.
    """
    method, source = recipe.method, inspection.source
    if not isinstance(method, YarnMethod) or method.mscale is not None:
        return recipe
    if isinstance(source, GgufSource):
        arch = arch_of(source.file)
        of_all = (
            source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier")
            if arch.log_multiplier
            else None
        )
        if of_all and arch.softmax:
            of_all /= 0.1
        of_all = (
            float(f"{of_all:.7g}") if of_all else None
        )  # a number of 32 bits, as people write it
        mscale = of_all if arch.same_mscale else 1.0
    else:
        assert isinstance(source, Source)
        assert isinstance(inspection, ConfigInspection)
        rope, _ = rope_dict(
            text_part(source.config(), inspection.model_family), inspection.model_family
        )
        mscale = number(rope, "mscale", 1.0)
        of_all = number(rope, "mscale_all_dim", 0.0)
    return (
        replace(recipe, method=replace(method, mscale=mscale, mscale_all_dim=of_all))
        if of_all
        else recipe
    )
