"""The RoPE that a recipe starts from, the schedule that follows, and how its numbers are
derived.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..convert.encoding import why_no_attention_factor
from ..convert.target import Target
from ..errors import BadSource, UnsupportedBake, UsageError
from ..inspection.contradictions import contradictions, refusal, refused_heads
from ..inspection.inspection import ConfigInspection, Inspection, inspect_config
from ..inspection.receipts.folder import first_source
from ..inspection.receipts.receipt import FineTuningRecord
from ..models.config import text_part
from ..models.family import Family
from ..models.gguf import GgufSource
from ..models.schema import Config
from ..models.source import Source
from ..rope.errors import RopeconvError, command_line, counted
from ..rope.forms import (
    Form,
    LongRope,
    Yarn,
    longrope_attention_factor,
    mscale_ratio,
    simplify_crossed,
    temperature_attention_factor,
)
from ..rope.lengths import format_tokens
from ..rope.methods.interpolation import YarnMethod
from ..rope.methods.method import Method, ScaledMethod, Value
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe, resolved_factor, total_factor
from ..rope.schedule import IN_FLOAT32, Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.read_header import arch_of
from ..runtimes.read_config import number, rope_dict
from ..runtimes.verdict import describe, unseen_wrapper
from .evidence import trained_scaling
from .fine_tuning import fine_tuning_for


def first_inspection(
    source: Source, target: Target
) -> tuple[ConfigInspection, ConfigInspection, Source]:
    """Inspect a checkpoint, and the original checkpoint to which a new plan is applied.

    The two differ only with `--replace` for an output of ropeconv: the original is then the
    checkpoint before the first run of ropeconv.

    Args:
        source: The checkpoint that the user gives.
        target: The options of the output.

    Returns:
        The inspection of `source`, the inspection of the original checkpoint, and the original
        checkpoint.

    Raises:
        BadSource: The original checkpoint of an output cannot be restored.
    """
    original = source
    if target.replace:
        original = first_source(source)
    original_inspection = inspect_config(original)
    if original is source:
        return original_inspection, original_inspection, original

    try:
        source_inspection = inspect_config(source)
    except BadSource:
        # an output with frequencies in its tensors, which only its own modelling code can read
        source_inspection = original_inspection
    return source_inspection, original_inspection, original


class AlreadyExtended(RopeconvError):
    """A model that was extended before.

    Attributes:
        short: The message without the options that only `apply` has.
    """

    def __init__(self, message: str, short: str = "") -> None:
        super().__init__(message)
        self.short = short


def start_spec(inspection: Inspection, recipe: Recipe, target: Target) -> RopeSpec:
    """Return the RoPE that a recipe starts from.

    It is the only place of a plan where a scaled model becomes an unscaled one.

    Raises:
        RopeconvError: For a scaled model without `target.replace` or `recipe.on_top`.
        UsageError: For `recipe.on_top` without a scaling.
        UnsupportedBake: For families for which nothing can be baked.
        BadSource: For a text model inside a model that no runtime was seen to load, and a config
            that states a setting with two values.
    """
    _refuse_family(inspection, target)
    if recipe.on_top:
        _refuse_on_top(inspection)
    # a model that is scaled already needs one of --replace, --on-top and --as-is
    keeps_scaling = recipe.on_top or isinstance(recipe.method, AsIs)
    says_what_to_do = target.replace or keeps_scaling
    if inspection.extended and not says_what_to_do:
        raise _already_extended(inspection)
    # the RoPE without its scaling, unless the recipe keeps that
    return recipe.start(inspection.spec)


def _refuse_family(inspection: Inspection, target: Target) -> None:
    """Raise where ropeconv cannot write an output of a model that a runtime computes correctly.

    Raises:
        UnsupportedBake: The family of the model has no context extension.
        BadSource: The config contradicts itself, or the model is a text model inside another model,
            such as a vision model, and that is untested.
    """
    # `refuse` is the reason why a family has no context extension; empty if it has one. Some
    # families have one only as GGUF.
    is_possible_as_gguf = inspection.gguf_only and target.to == "gguf"
    if inspection.refuse and not is_possible_as_gguf:
        raise not_extended(inspection.display_name, inspection.refuse)

    # a checkpoint with a config.json
    if isinstance(inspection, ConfigInspection) and isinstance(inspection.source, Source):
        _refuse_contradiction(inspection, inspection.source)
        # a clause on the model around the text model; empty if it was tested or there is none
        untested_model = unseen_wrapper(inspection.source.config(), inspection.model_family)
        if untested_model:
            raise BadSource(
                f"{untested_model}; pass --family {inspection.name} to treat its text model as"
                " that, which is untested, or give the text model as a checkpoint of its own"
            )


def not_extended(family_name: str, reason: str) -> UnsupportedBake:
    """Return the error for a family that has no context extension.

    Args:
        family_name: The name of the family for display.
        reason: Why it has none, with advice.
    """
    return UnsupportedBake("a context extension", family_name, reason, "or choose another model")


def _refuse_contradiction(inspection: ConfigInspection, source: Source) -> None:
    """Raise BadSource for a config that states a setting with two values, or heads that clash."""
    family = inspection.model_family
    part = text_part(source.config(), family)
    refused = refused_heads(part, family)
    if refused:
        raise BadSource(refused)
    for found in contradictions(part, family, inspection.spec.head_dim):
        raise BadSource(refusal(found))


def _refuse_on_top(inspection: Inspection) -> None:
    """Raise for a model without a scaling, and one that declares less than its scaling covers."""
    reference = inspection.source.reference
    spec = inspection.spec
    if not spec.scaled:
        raise UsageError(f"{reference} has no scaling that --on-top could keep; leave it out")
    refuse_undeclared(inspection)


def refuse_undeclared(inspection: Inspection) -> None:
    """Raise RopeconvError for a model that declares fewer tokens than its scaling covers."""
    reference = inspection.source.reference
    declared = inspection.spec.context
    covered = inspection.spec.covered_context
    if covered > declared:
        command = command_line("apply", reference, "--as-is", "--context", covered)
        raise RopeconvError(
            f"{reference} declares {declared:,} tokens and its scaling already covers"
            f" {covered:,}; declare that first with `{command}`"
        )


def _already_extended(inspection: Inspection) -> AlreadyExtended:
    """The error for a model that was extended before."""
    # which of --replace, --on-top and --as-is fit depends on where the scaling is from
    reference = inspection.source.reference
    has = f"({describe(inspection.spec.form)})"

    # an output of ropeconv with another base, which is no scaling
    if not inspection.spec.scaled:
        short = (
            f"{reference} was extended by ropeconv already {has}; pass --replace to start from its"
            " first source"
        )
        return AlreadyExtended(f"{short}, or --as-is to keep the RoPE it has", short)

    # a scaling that was written into the config, and one that the model was trained with
    short = f"{reference} is scaled already {has}; pass --replace to start from its unscaled RoPE"
    message = f"{short}, --on-top to extend its scaling, or --as-is to keep the scaling it has"
    if trained_scaling(inspection):
        message = (
            f"{reference} is scaled already {has}; pass --on-top to extend the scaling that it was"
            " trained with, --as-is to keep it, or --replace to start from its unscaled RoPE"
        )
    return AlreadyExtended(message, short)


@dataclass(frozen=True)
class PlanStart:
    """A source and the schedule of a recipe for it, with which every plan begins."""

    recipe: Recipe
    """The recipe with the mscale pair that it inherits from the source."""

    spec: RopeSpec
    """The RoPE that it starts from."""

    schedule: Schedule

    notes: tuple[str, ...]
    """Sentences on how its numbers are derived."""

    replaced: str
    """A sentence on the settings that `--replace` keeps and drops, or empty."""

    fine_tuning: FineTuningRecord
    """The training that the recipe needs at its length."""


def begin(inspection: Inspection, first: Inspection, recipe: Recipe, target: Target) -> PlanStart:
    """Return what every plan begins with: the completed recipe, its RoPE and its schedule.

    The schedule is the new frequencies and the attention factor. With it come sentences for the
    user, and whether the model needs training.

    Args:
        inspection: The inspection of the source, whose length an output must not fall below.
        first: The inspection of the model that the plan starts from. With --replace, it is the
            model before the first run of ropeconv; otherwise it is the source.
        recipe: The method and its modifiers.
        target: The target of the plan.

    Raises:
        UsageError: Where the output would declare fewer tokens than the source and no `--context`
            asks for it; else what `start_spec` raises.
        RecipeError: As `Recipe.schedule`.
    """
    # the RoPE to start from, such as that of the model without its scaling
    spec = start_spec(first, recipe, target)
    completed = complete_recipe(recipe, first)

    # the schedule; it must not be shorter than the source, unless the user names that length
    schedule = completed.schedule(spec, first.spec)
    declared = inspection.spec.context
    if recipe.context is None and schedule.context < declared:
        raise _too_short(completed, spec, schedule.context, declared)
    if not isinstance(recipe.method, AsIs):
        unseen = nothing_to_extend(first, schedule.context)
        if unseen:
            raise RopeconvError(f"{first.source.reference} cannot be extended: {unseen}")
        useless = changes_nothing(completed, spec, schedule, first.spec)
        if useless:
            raise RopeconvError(useless)

    # sentences on numbers that the user did not give, such as "factor 4 = 131,072 / 32,768 trained
    # tokens"
    notes = []
    if first.assumption:
        notes.append(first.assumption)
    notes += _derivation(inspection, completed, spec)
    keeps_attention_factor = completed.attention_factor != recipe.attention_factor
    if keeps_attention_factor:
        notes.append(
            f"{first.name} has no attention factor of the method: it keeps"
            f" {spec.attention_factor:.5g}"
        )
    mscale_given = getattr(recipe.method, "mscale", None) is not None
    if not mscale_given:
        notes += _notes_on_mscale(completed, schedule)

    replaced = ""
    if not recipe.on_top:
        replaced = describe_replaced(completed, first, schedule)
    return PlanStart(
        recipe=completed,
        spec=spec,
        schedule=schedule,
        notes=tuple(notes),
        replaced=replaced,
        fine_tuning=fine_tuning_for(completed, first, schedule),
    )


def _notes_on_mscale(recipe: Recipe, schedule: Schedule) -> list[str]:
    """A sentence on the numbers mscale and mscale_all_dim of a recipe; none for one without."""
    method = recipe.method
    if not isinstance(method, YarnMethod) or method.mscale is None:
        return []
    factors = f"attention_factor {schedule.attention_factor:.5g}"
    if schedule.softmax_scale != 1:
        factors += f", softmax_scale {schedule.softmax_scale:.5g}"
    pair = f"mscale {method.mscale:g} and mscale_all_dim {method.mscale_all_dim:g}"
    return [f"{pair} are the model's own: {factors}"]


def _too_short(recipe: Recipe, spec: RopeSpec, context: int, declared: int) -> UsageError:
    """Return the error for an output that would declare fewer tokens than its source.

    `--yarn 4` for a model that was trained with 8k tokens and declares 128k gives 32k. The message
    advises `--yarn 512k`, which is 4 times the declared length.

    Args:
        recipe: The method and its modifiers.
        spec: The RoPE that the method starts from.
        context: The tokens that the output would declare.
        declared: The tokens that the source declares.
    """
    # The length that the message advises: the declared length times the factor of the user, such as
    # 4. For `--yarn 128k` (`method.length` is set) and methods without a factor, times 2.
    method = recipe.method
    advised_length = 2 * declared
    if not method.length:
        factor = method.factor_over(spec.original_context)
        if factor is not None and factor > 1:
            advised_length = round(declared * factor)

    # the flags for this length, such as "--yarn 512k"; empty for a method without a length
    advised_flags = method.longer(advised_length, spec.original_context)
    if not advised_flags:
        advised_flags = f"--context {format_tokens(declared)} to keep that"
    return UsageError(
        f"the result declares {context:,}, less than today's {declared:,}; pass {advised_flags},"
        f" or --context {format_tokens(context)} if you mean it"
    )


def nothing_to_extend(inspection: Inspection, context: int) -> str:
    """Return why no method can extend the context that the layers of a model see.

    Args:
        inspection: The inspection of the model.
        context: The tokens that the output would declare.

    Returns:
        The reason, with advice for the user; empty for a model that can be extended.
    """
    spec = inspection.spec
    if not spec.layers:
        return ""
    # the begin and the end of both messages
    none_of_the_layers = f"none of the {counted(len(spec.layers), 'layer')}"
    advice = f"--as-is --context {context} declares the length without it"

    # 1. No layer has the RoPE that methods change, which is the RoPE of "global" layers. "local"
    # layers see a window and have another RoPE. Further layers may have no RoPE.
    has_global_layers = spec.count("global") > 0
    if not has_global_layers:
        reason = "none rotates"
        if spec.count("local"):
            reason = f"each sees a {spec.window_kind} with its own"
        return f"{none_of_the_layers} has the RoPE that a method changes ({reason}); {advice}"

    # 2. Every layer has a window that is shorter than the wanted context.
    short_windows = [window for window in spec.windows if window is not None and window < context]
    some_layer_sees_all = len(short_windows) < len(spec.layers)
    if some_layer_sees_all:
        return ""
    # Mistral and others have the same window in all layers. Some runtimes ignore it, so this is
    # only a note on the output (`cannot_gain`).
    if isinstance(inspection, ConfigInspection):
        family_has_one_window = inspection.model_family.window.layers == "all"
        if family_has_one_window:
            return ""
    return (
        f"{none_of_the_layers} sees the whole context, only {max(short_windows):,} tokens"
        f" ({spec.window_kind}), so a method adds nothing beyond them; {advice}"
    )


def changes_nothing(
    recipe: Recipe, spec: RopeSpec, schedule: Schedule, source_spec: RopeSpec
) -> str:
    """Return that a recipe only declares a longer context, in words; empty where it does more.

    `--llama3 4` is such a recipe for Gemma 4, whose slowest pair rotates more often than llama3
    changes. A factor of 1, or the base that the model has, is meant so.

    Args:
        recipe: The method and its modifiers.
        spec: The RoPE that the method starts from.
        schedule: The frequencies, the factors and the context that the recipe gives.
        source_spec: The RoPE of the source, with the scaling that `--replace` removes.
    """
    factor = resolved_factor(recipe, spec.original_context, source_spec.context)
    if factor is None or factor <= 1:
        return ""
    before = spec.current()
    computes_same = schedule.computes_same(before, IN_FLOAT32) and schedule.log_n is None
    if not computes_same or not schedule.keeps_frequencies(before):
        return ""

    ways = ways_to_lengthen(schedule.context, source_spec)
    return f"{keeps_every_frequency(recipe.method, spec)}; {ways}"


def ways_to_lengthen(context: int, source_spec: RopeSpec) -> str:
    """Return what to pass instead of a method that changes no frequency of a model.

    Args:
        context: The tokens that the output is to declare.
        source_spec: The RoPE of the source.
    """
    length = format_tokens(context)
    if source_spec.scaled:
        return f"pass --ntk {length} to change it"
    return f"pass --as-is --context {length} to declare only the length, or --ntk {length}"


def keeps_every_frequency(method: Method, spec: RopeSpec) -> str:
    """Return that a method changes no frequency of a model, with the reason where it is known."""
    words = method.flag() if method.value is Value.FILE else method.command
    sentence = f"{words} changes no frequency of this model"
    has_ramp = isinstance(method, ScaledMethod) and method.ordered is not None
    if has_ramp and spec.fewest_turns >= 1:
        sentence += (
            f", whose pairs rotate {spec.fewest_turns:,.0f} times or more within its"
            f" {spec.context:,} tokens"
        )
    return sentence


def _derivation(inspection: Inspection, recipe: Recipe, spec: RopeSpec) -> list[str]:
    """Return a sentence on where the factor of a method comes from; empty where that is evident.

    For a model that was trained with 32k tokens, `--yarn 128k` gives
    ["factor 4 = 131,072 / 32,768 trained tokens"]. `--yarn 4` has the factor already, so it gives
    no sentence, unless the model had a scaling: then users may expect 4 times its declared length.

    Args:
        inspection: The inspection of the source, with the scaling that it may have.
        recipe: The method and its modifiers.
        spec: The RoPE that the method starts from: without the scaling, except for `--on-top`.
    """
    source = inspection.spec
    if recipe.on_top:
        return [_derive_on_top(recipe, source)]

    # the factor is given, or follows from a given length: factor = length / trained length
    trained = recipe.original_context or spec.original_context
    factor = recipe.method.factor_over(trained)
    given_length = recipe.method.length
    if factor is None:  # a method without a factor, such as --theta
        return []
    factor_is_given = given_length is None
    if factor_is_given and not source.scaled:
        return []

    length = given_length or round(trained * factor)
    sentence = f"factor {factor:.6g} = {length:,} / {trained:,} trained tokens"
    if source.scaled:
        sentence += (
            f"; {trained:,} is the length before the {source.form.kind} scaling that --replace"
            f" removes, with which the model declares {source.context:,}"
        )
    return [sentence]


def _derive_on_top(recipe: Recipe, source: RopeSpec) -> str:
    """Return a sentence on the factor of a method that is put on top of a scaling.

    For `--yarn 2 --on-top`: "the yarn scaling is kept with factor 8 = 4 x 2 (2 = 262,144 / 131,072
    declared tokens)".

    Args:
        recipe: The method and its modifiers.
        source: The RoPE of the source, with its scaling.
    """
    kept = f"the {source.form.kind} scaling is kept"
    method = recipe.method
    declared = source.context
    trained = source.original_context

    # The factor over the declared context. It is 2 for `--yarn 2`, and also for `--yarn 256k` if
    # 128k are declared. `factor_over` divides a length by the trained context (32k), so `relative`
    # first writes 256k as 64k.
    method_over_trained = method.relative(declared, trained)
    factor = method_over_trained.factor_over(trained)
    if factor is None:
        return kept
    lengths = f"{factor:.6g} = {declared * factor:,.0f} / {declared:,} declared tokens"

    # a method of another kind than the scaling: both are applied
    factors = total_factor(method, source)  # the factors of the scaling and of the method
    if factors is None:
        return f"{kept}, and {method.name} is applied on top of it with factor {lengths}"

    # the same kind: one scaling with the product of the two factors
    scaling_factor, _ = factors
    product = scaling_factor * factor
    return f"{kept} with factor {product:.6g} = {scaling_factor:.6g} x {factor:.6g} ({lengths})"


def warn_of_short_reach(recipe: Recipe, inspection: Inspection, spec: RopeSpec) -> list[str]:
    """Return a warning where the method does not reach `--context`; empty where it does."""
    method = recipe.method
    wanted = recipe.context
    if wanted is None:
        return []

    # Methods for a length: theta-for and theta-bound have a field `target`, and a dynamic method
    # that is frozen at a length has `at`; other methods have neither.
    flag = method.flag()
    made_for = getattr(method, "target", None) or getattr(method, "at", None)
    if made_for is not None and made_for < wanted:
        return [
            f"{flag}: it is made for {made_for:,} tokens, which does not cover --context {wanted:,}"
        ]

    # methods with a factor: they reach the length that they start from times the factor
    if recipe.on_top:
        kind = "declared"
        start = inspection.spec.context
    else:
        kind = "trained"
        start = recipe.original_context or spec.original_context
    factor = method.factor_over(start, kind)
    if factor is None or round(start * factor) >= wanted:
        return []
    reached = f"{factor:.6g} x {start:,} {kind} tokens is {start * factor:,.0f}"
    repair = method.longer(wanted, spec.original_context)
    return [f"{flag}: {reached}, which does not cover --context {wanted:,}; pass {repair}"]


def complete_recipe(recipe: Recipe, inspection: Inspection) -> Recipe:
    """Return a recipe with everything that it takes from the model.

    These are the settings of a scaling that it replaces or widens, such as YaRN's beta_fast, and
    for some models the attention factor. Everything that computes what `apply` writes, such as
    `eval` and `plot`, begins with this.

    Args:
        recipe: The method and its modifiers, as the user gives them.
        inspection: The inspection of the model that the recipe starts from.

    Raises:
        BadSource: As `inherit_mscale`.
    """
    return keep_attention_factor(inherit_settings(recipe, inspection), inspection)


def complete_on_top(recipe: Recipe, config: Config, family: Family, spec: RopeSpec) -> Recipe:
    """Return a recipe on top of a scaling with everything that it takes from the model.

    It does for a loaded model, of which only the config is known, what `complete_recipe` does.

    Args:
        recipe: A recipe with `on_top`.
        config: The config of the model.
        family: Its family.
        spec: Its RoPE.

    Raises:
        BadSource: As `inherit_mscale`.
    """
    with_mscale = _with_mscale(recipe, _read_config_mscale(config, family))
    if not why_no_attention_factor(config, family):
        return with_mscale
    return _with_attention_factor_of(spec, with_mscale)


def keep_attention_factor(recipe: Recipe, inspection: Inspection) -> Recipe:
    """Give a recipe the attention factor of the model, if the model can only have this one.

    YaRN usually changes the attention factor. In some models, a norm after the rotation cancels any
    attention factor, and DeepSeek V4 is computed without one. A wider YaRN for such a model must
    keep the attention factor of its training.

    Args:
        recipe: The method and its modifiers.
        inspection: The inspection of the model.

    Returns:
        The recipe, unchanged for any other model.
    """
    # The method does not widen the scaling of the model. The user must pass --attention-factor.
    is_yarn = isinstance(recipe.method, YarnMethod)
    was_yarn = isinstance(inspection.first_spec.form, Yarn)
    widens_scaling = recipe.on_top or (is_yarn and was_yarn)
    if not widens_scaling:
        return recipe

    if not has_fixed_attention_factor(inspection):
        return recipe
    return _with_attention_factor_of(inspection.spec, recipe)


def _with_attention_factor_of(spec: RopeSpec, recipe: Recipe) -> Recipe:
    """Return a recipe with the attention factor of a model, unless the user has chosen one.

    One that the user has chosen is refused later if it cannot be computed.
    """
    options = (recipe.attention_factor, recipe.temperature_slope, recipe.temperature_intercept)
    if any(value is not None for value in options):
        return recipe
    return replace(recipe, attention_factor=spec.attention_factor)


def has_fixed_attention_factor(inspection: Inspection) -> bool:
    """Return whether a model can have no other attention factor than its own."""
    source = inspection.source
    if isinstance(source, GgufSource):
        arch = arch_of(source.file)
        return arch.norm_after_rope or arch.no_attention_factor
    if not isinstance(source, Source) or not isinstance(inspection, ConfigInspection):
        return False
    return bool(why_no_attention_factor(source.config(), inspection.model_family))


def inherit_settings(recipe: Recipe, inspection: Inspection) -> Recipe:
    """Return the recipe with the settings that it takes from the scaling of its source.

    These are the mscale pair, and for a recipe that replaces a scaling by one of the same kind its
    ramp: the betas and `truncate` of YaRN, the two frequency factors of llama3. On top of a
    scaling, `Recipe.schedule` does the latter. Raises BadSource as `inherit_mscale`.
    """
    with_mscale = inherit_mscale(recipe, inspection)
    if recipe.on_top:
        return with_mscale
    spec = inspection.first_spec
    form = simplify_crossed(spec.form, spec.rotary_dim)
    return replace(with_mscale, method=with_mscale.method.inherit(form, recipe.explicit))


SETTINGS = {
    "yarn": ("beta_fast", "beta_slow", "truncate"),
    "llama3": ("low_freq_factor", "high_freq_factor"),
}
"""The settings of a scaling beside its factor, by its kind."""
SAME_FACTOR = 1e-6
"""By how much two attention factors may differ and count as one."""


def describe_replaced(recipe: Recipe, first: Inspection, schedule: Schedule) -> str:
    """Return a sentence on the settings of a scaling that `--replace` keeps and drops.

    The same method with another factor keeps the settings that the user does not give, such as
    YaRN's beta_fast. Any other method drops all settings.

    Args:
        recipe: The new method, with the settings that it keeps.
        first: The inspection of the model before the first run of ropeconv.
        schedule: The new frequencies and attention factor.

    Returns:
        The sentence; empty where no scaling is replaced.
    """
    source = first.first_spec  # the RoPE of the model
    form = source.form  # its scaling
    method = recipe.method
    keeps_scaling = isinstance(method, AsIs)
    if not source.scaled or keeps_scaling:
        return ""

    # the settings of the scaling, e.g. {"beta_fast": 32.0, "beta_slow": 1.0}; in DeepSeek's models
    # also {"mscale": 0.707, "mscale_all_dim": 0.707}
    mscale_pair = _mscale_pair(first)
    settings: dict[str, object] = {}
    for name in SETTINGS.get(form.kind, ()):
        settings[name] = getattr(form, name)
    settings |= mscale_pair

    # another method
    if method.name != form.kind:
        return _describe_dropped_scaling(form, settings)
    # the same method; the attention factor of the model may be another one than the usual
    usual_factor = _usual_attention_factor(source, mscale_pair)
    return _describe_changed_settings(method, settings, source, schedule, usual_factor)


def _describe_dropped_scaling(form: Form, settings: Mapping[str, object]) -> str:
    """Return a sentence on a scaling that another method replaces.

    Such as "--replace drops the yarn scaling (factor 4, beta_fast 32); --on-top keeps it".
    """
    parts = []
    factor = getattr(form, "factor", None)
    if factor is not None:
        parts.append(f"factor {factor:g}")
    for name, value in settings.items():
        parts.append(f"{name} {_setting_text(value)}")
    details = f" ({', '.join(parts)})" if parts else ""
    return f"--replace drops the {form.kind} scaling{details}; --on-top keeps it"


def _describe_changed_settings(
    method: Method,
    settings: Mapping[str, object],
    source: RopeSpec,
    schedule: Schedule,
    usual_factor: float,
) -> str:
    """Return a sentence on the settings that change when a method replaces its own scaling.

    For a new factor of YaRN: "--replace keeps beta_fast 32 and drops attention_factor 1.2 (now
    1.37; --attention-factor 1.2 keeps it) of the yarn scaling".

    Args:
        method: The method with its new settings.
        settings: The settings of the old scaling.
        source: The RoPE of the model with the old scaling.
        schedule: The new frequencies and attention factor.
        usual_factor: The attention factor that the old scaling has by default.

    Returns:
        The sentence; empty for a scaling without settings.
    """
    kept = []
    dropped = []
    for name, value in settings.items():
        old_text = f"{name} {_setting_text(value)}"
        new_value = getattr(method, name)
        if new_value == value:
            kept.append(old_text)
        else:
            dropped.append(f"{old_text} (now {_setting_text(new_value)})")

    # The attention factor is a setting if the publisher has chosen it, so that it is not the usual
    # one. Otherwise it follows from the factor, and is not mentioned.
    old_attention = source.attention_factor
    new_attention = schedule.attention_factor
    is_chosen = abs(old_attention - usual_factor) > SAME_FACTOR
    is_kept = abs(old_attention - new_attention) <= SAME_FACTOR
    if is_chosen and is_kept:
        kept.append(f"attention_factor {old_attention:.6g}")
    elif is_chosen:
        dropped.append(
            f"attention_factor {old_attention:.6g} (now {new_attention:.6g}; --attention-factor"
            f" {old_attention:.12g} keeps it)"
        )

    words = []
    if kept:
        words.append(f"keeps {', '.join(kept)}")
    if dropped:
        words.append(f"drops {', '.join(dropped)}")
    if not words:
        return ""
    return f"--replace {' and '.join(words)} of the {source.form.kind} scaling"


def _setting_text(value: object) -> str:
    """The value of a setting for people: `1` for 1.0, `off` for False."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}"


def _usual_attention_factor(spec: RopeSpec, pair: dict[str, float]) -> float:
    """The attention factor that follows from the factor of a scaling, without one of its own."""
    form = spec.form
    if isinstance(form, Yarn):
        if pair and all(pair.values()):
            return mscale_ratio(form.factor, pair["mscale"], pair["mscale_all_dim"])
        return temperature_attention_factor(form.factor)
    if isinstance(form, LongRope) and form.original_context > 1:
        return longrope_attention_factor(
            spec.context / form.original_context, form.original_context
        )
    return 1.0


def inherit_mscale(recipe: Recipe, inspection: Inspection) -> Recipe:
    """Return the recipe with the mscale pair of its source, for YaRN without a pair of its own.

    The source was trained with the attention factor and the softmax scale that follow from it.
    Other recipes do not change. Raises BadSource for a non-number.
    """
    return _with_mscale(recipe, _mscale_pair(inspection))


def _with_mscale(recipe: Recipe, pair: Mapping[str, float]) -> Recipe:
    """Return the recipe with an mscale pair; unchanged where it has its own, or is not YaRN.

    Args:
        recipe: The method and its modifiers.
        pair: The pair of the model, such as {"mscale": 0.707, "mscale_all_dim": 0.707}, or empty.
    """
    method = recipe.method
    if not isinstance(method, YarnMethod) or method.mscale is not None or not pair:
        return recipe
    with_pair = replace(method, mscale=pair["mscale"], mscale_all_dim=pair["mscale_all_dim"])
    return replace(recipe, method=with_pair)


def _mscale_pair(inspection: Inspection) -> dict[str, float]:
    """Return the settings mscale and mscale_all_dim of YaRN in a model; empty without the latter.

    DeepSeek V2 has {"mscale": 0.707, "mscale_all_dim": 0.707}: the attention factor and the softmax
    scale follow from both.

    Args:
        inspection: The inspection of the model.
    """
    source = inspection.source
    if isinstance(source, GgufSource):
        return _pair(*_read_gguf_mscale(source))
    assert isinstance(source, Source)
    assert isinstance(inspection, ConfigInspection)
    return _read_config_mscale(source.config(), inspection.model_family)


def _read_config_mscale(config: Config, family: Family) -> dict[str, float]:
    """Return the settings mscale and mscale_all_dim of a config.json, from its RoPE dictionary."""
    rope, _ = rope_dict(text_part(config, family), family)
    return _pair(number(rope, "mscale", 1.0), number(rope, "mscale_all_dim", 0.0))


def _pair(mscale: float | None, mscale_all_dim: float | None) -> dict[str, float]:
    """Return both settings; empty without mscale_all_dim.

    transformers reads a 0 as absent, and then computes the usual attention factor.
    """
    if not mscale_all_dim or mscale is None:
        return {}
    return {"mscale": mscale, "mscale_all_dim": mscale_all_dim}


def _read_gguf_mscale(source: GgufSource) -> tuple[float | None, float | None]:
    """Return the settings mscale and mscale_all_dim of DeepSeek's YaRN from a GGUF file.

    GGUF has only the key `yarn_log_multiplier`, for mscale_all_dim. llama.cpp takes the same number
    as mscale for the architecture deepseek2, and 1 for others (src/llama-context.cpp:187-196).

    Returns:
        mscale and mscale_all_dim; (1.0, None) for a file without the key.
    """
    no_settings = 1.0, None
    arch = arch_of(source.file)
    reads_key = arch.log_multiplier
    if not reads_key:
        return no_settings
    multiplier = source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier")
    if not multiplier:
        return no_settings

    # For an architecture that scales all logits by YaRN's attention factor (`arch.softmax`),
    # converters write 0.1 * mscale_all_dim. For others they write mscale_all_dim.
    if arch.softmax:
        multiplier /= 0.1
    # the file has a float32, such as 0.70700001716 for 0.707
    mscale_all_dim = float(f"{multiplier:.7g}")
    if arch.same_mscale:  # deepseek2
        return mscale_all_dim, mscale_all_dim
    return 1.0, mscale_all_dim
