"""Reads the RoPE of a config.json as one version of one runtime does. Read `read_spec` first.

It reads the same keys, with the same precedence and the same defaults. The RoPE of a checkpoint is
what the newest transformers reads. The verdicts of a plan follow from what each runtime reads from
the planned config.
"""

import math
from dataclasses import replace
from typing import Any

from ..errors import BadSource
from ..formats.jsontext import JsonObject
from ..models.config import geometry, nested_settings, text_part
from ..models.family import Family, Kind
from ..models.layers import kinds_of, layer_names, layer_types, settings_name
from ..models.registry import null_meaning
from ..models.schema import DUAL_CHUNK, Config, first_present, is_null
from ..rope.errors import ImpossibleSize, RecipeError, RopeconvError, shown
from ..rope.forms import (
    DynamicNtk,
    Form,
    InterpolatedForm,
    Llama3,
    LongRope,
    Plain,
    Yarn,
    longrope_attention_factor,
    mscale_ratio,
    ntk_theta,
    temperature_attention_factor,
)
from ..rope.schedule import QueryScaling
from ..rope.spec import Proportional, RopeSpec, TrainedLength, rotating_share
from .runtime import RuleSet, Runtime, TypeRules, newest


def number(rope: JsonObject, key: str, default: float | None = None) -> float:
    """Return a number of a RoPE dictionary.

    Raises:
        BadSource: For another value, or an absent one without `default`.
    """
    value = rope.get(key)
    if value is None:
        value = default
    # true is an int in Python, and NaN is a number in the JSON that Python reads
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)

    hint = "write a number there"
    if isinstance(value, str):
        hint = f"write the number {value} without quotes"
    raise BadSource(f"config.json has {key} = {shown(value)} in its RoPE settings; {hint}")


def _factor(rope: JsonObject, rules: TypeRules, original: int, sizes: RopeSpec) -> float:
    """The scale factor of a RoPE dictionary; if absent, the declared over the trained length."""
    if rules.factor == "max/original" or rope.get("factor") is None:
        return sizes.context / original
    return number(rope, "factor")


def _form(kind: str, rope: JsonObject, theta: float, rules: TypeRules, sizes: RopeSpec) -> Form:
    """Return the form of the frequencies that a runtime computes from a RoPE dictionary.

    Args:
        kind: The rope type.
        rope: The RoPE dictionary.
        theta: The base.
        rules: How the runtime reads this type.
        sizes: The sizes of the model.
    """
    original = _original_context(rope, rules, sizes)

    # types without a ramp
    if kind == "default":
        return Plain(theta)
    if kind == "linear":
        number(rope, "factor")  # it must be there, even for a runtime that does not use it
        return InterpolatedForm(theta, _factor(rope, rules, original, sizes))
    if kind == "dynamic" and rules.alpha and rope.get("alpha"):
        return _hunyuan(rope, theta, sizes)
    if kind == "dynamic":
        return DynamicNtk(theta, number(rope, "factor"), sizes.context)
    if kind == "proportional":
        factor = 1.0 if rules.factor == "1" else number(rope, "factor", 1.0)
        return Proportional(theta, factor, number(rope, "partial_rotary_factor", 1.0))
    if kind == "longrope":
        return _longrope(rope, theta, rules, original, sizes)

    # types with a ramp between fast and slow pairs: llama3, and yarn
    if kind == "llama3":
        factor = number(rope, "factor")
        low = number(rope, "low_freq_factor")
        high = number(rope, "high_freq_factor")
        return Llama3(
            theta=theta,
            factor=factor,
            original_context=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )

    factor = _factor(rope, rules, original, sizes)
    # keys that a runtime does not read have their defaults there
    beta_fast = 32.0
    beta_slow = 1.0
    if rules.betas:
        beta_fast = number(rope, "beta_fast", 32.0)
        beta_slow = number(rope, "beta_slow", 1.0)
    truncate = True
    if rules.truncate != "ignored":
        # null is false too: transformers has `if truncate`, behind a default for an absent key
        truncate = bool(rope.get("truncate", True))
    return Yarn(
        theta=theta,
        factor=factor,
        original_context=original * rules.times_original,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        truncate=truncate,
    )


def _original_context(rope: JsonObject, rules: TypeRules, sizes: RopeSpec) -> int:
    """Return the length, in tokens, that a runtime takes for the trained one."""
    if rules.original == "max":  # it reads max_position_embeddings in place of the key
        return sizes.context
    return int(number(rope, ORIGINAL, sizes.context))


def _with_original_at_top(
    part: Config, rope: JsonObject, family: Family, rule_set: RuleSet, kind: str
) -> JsonObject:
    """Return a RoPE dictionary with the trained length from the top level, which counts first.

    Phi-3 has it there, and its class has a default.

    Args:
        part: The text part of the config.
        rope: The RoPE dictionary.
        family: The family of the model.
        rule_set: How the runtime reads the config.
        kind: The rope type.
    """
    # beside a dictionary for each layer type, transformers 5 does not read the key at the top
    # (modeling_rope_utils.py, standardize_rope_params)
    if kind not in SCALED_FROM or (family.writing.nested and rule_set.nested):
        return rope
    at_top = part.get(ORIGINAL)
    if at_top is None:
        at_top = family.defaults.original_context
    if at_top is None:
        return rope
    return {**rope, ORIGINAL: at_top}


def _longrope(
    rope: JsonObject, theta: float, rules: TypeRules, original: int, sizes: RopeSpec
) -> LongRope:
    """Return LongRoPE with its two lists of factors, as a runtime uses them.

    transformers uses the short list for texts within the trained length, and the long list for
    longer texts. Some runtimes use one of the lists for all texts; the result then has this list
    twice.

    Args:
        rope: The RoPE dictionary.
        theta: The base.
        rules: How the runtime reads the rope type. Its `lists` says which list it uses.
        original: The trained length in tokens.
        sizes: The RoPE of the model, for the number of pairs.
    """
    short = _factors(rope, "short_factor", sizes)
    long = _factors(rope, "long_factor", sizes)

    # "window" means the long list for a server whose context window is above the trained length;
    # the window of an extended model is
    uses_long_for_all_texts = rules.lists in ("long", "window")
    if uses_long_for_all_texts:
        short = long
    uses_short_for_all_texts = rules.lists == "short"
    if uses_short_for_all_texts:
        long = short
    return LongRope(theta=theta, short_factor=short, long_factor=long, original_context=original)


def _hunyuan(rope: JsonObject, theta: float, sizes: RopeSpec) -> Plain:
    """Return the form of Hunyuan: a base that follows from `alpha`, at every length."""
    alpha = number(rope, "alpha")
    if sizes.rotary_dim <= 2 or not 1 <= alpha <= 1e9:
        raise BadSource(
            f"config.json has alpha = {alpha:g} in its RoPE settings; write a number of at least 1,"
            " such as 1000"
        )
    return Plain(ntk_theta(theta, alpha, sizes.rotary_dim))


def _factors(rope: JsonObject, key: str, sizes: RopeSpec) -> tuple[float, ...]:
    """Return a list of divisors, one per pair that rotates."""
    values = rope.get(key)
    pairs = sizes.rotary_dim // 2
    if not isinstance(values, list) or len(values) != pairs:
        have = len(values) if isinstance(values, list) else 0
        raise BadSource(
            f"config.json has {have} numbers in {key}, and {pairs} pairs rotate; write {pairs}"
            " numbers"
        )
    return tuple(number({key: value}, key) for value in values)


def _attention_factor(rope: JsonObject, rules: TypeRules, form: Form, sizes: RopeSpec) -> float:
    """Return the attention factor, by which a runtime multiplies cos and sin.

    Args:
        rope: The RoPE dictionary of the config.
        rules: How the runtime reads the rope type.
        form: The formula of the frequencies.
        sizes: The RoPE of the model, for its context.
    """
    # YaRN: 0.1 ln s + 1, with s the factor of the scaling
    if isinstance(form, Yarn):
        factor = form.factor
        by_formula = temperature_attention_factor(factor)
    # LongRoPE: sqrt(1 + ln s / ln L), with L the trained length; infinite for L = 1
    elif isinstance(form, LongRope):
        factor = _factor(rope, rules, form.original_context, sizes)
        by_formula = math.inf
        if form.original_context > 1:
            by_formula = longrope_attention_factor(factor, form.original_context)
    # other types have no attention factor
    else:
        return 1.0

    # most runtimes prefer a key of the dictionary to the formula, such as "attention_factor"
    attention_factor = _first_attention_factor(rope, rules, factor, by_formula)
    # SGLang and vLLM multiply it by one more key
    if rules.times_attn_factor:
        attention_factor *= number(rope, "attn_factor", 1.0)
    return attention_factor


def _first_attention_factor(
    rope: JsonObject, rules: TypeRules, factor: float, by_formula: float
) -> float:
    """Return the attention factor from the first source that has one; 1 where none has.

    Args:
        rope: The RoPE dictionary.
        rules: How the runtime reads its type. Its `attention_factor` has the sources in the order
            of the runtime, such as ("attention_factor", "mscale", "formula").
        factor: The factor of the scaling.
        by_formula: The attention factor by the formula of the method.
    """
    for source in rules.attention_factor:
        if source == "formula":
            return by_formula
        if source == "mscale" and rope.get("mscale") and rope.get("mscale_all_dim"):
            mscale = number(rope, "mscale")
            return mscale_ratio(factor, mscale, number(rope, "mscale_all_dim"))
        if source == "attention_factor" and rope.get("attention_factor") is not None:
            return number(rope, "attention_factor")
        # "short_mscale" stands for two keys of Phi-3.5 MoE: short_mscale is for the short list of
        # LongRoPE, and long_mscale for the long list, which an extended model uses
        if source == "short_mscale" and rope.get("long_mscale") is not None:
            return number(rope, "long_mscale")
    return 1.0


SHORTEST_TRAINED = 2048
"""The shortest context, in tokens, for which published language models with RoPE were trained."""
QUERY_SCALE = "llama_4_scaling"
NOT_A_SCALING = {"mrope": "default", "su": "longrope", None: "default"}


class UnknownRopeType(RopeconvError):
    """The runtime has no code for a rope type, which is the message."""


def read_spec(config: Config, family: Family, runtime: Runtime | None = None) -> RopeSpec:
    """Return the RopeSpec that a runtime reads from a config.json.

    Args:
        config: The whole file.
        family: The family of the model.
        runtime: By default the newest transformers.

    Raises:
        BadSource: For values of the wrong kind.
        UnknownRopeType: For a rope type that the runtime has no code for.
    """
    reader = runtime or newest("transformers")
    rules = reader.rule_set(family.name, str(config.get("model_type", "")))
    # without a runtime it is the RoPE of the model itself, whose frequencies must be finite
    is_of_model = runtime is None
    return read_by(config, family, rules, check=is_of_model)


def read_by(config: Config, family: Family, rules: RuleSet, check: bool = False) -> RopeSpec:
    """Return the RopeSpec that a set of rules reads from a config.json.

    Args:
        config: The whole file.
        family: The family of the model.
        rules: The rules.
        check: Whether infinite frequencies and factors are an error, and settings on which the
            class in transformers fails.

    Raises:
        BadSource, UnknownRopeType: As `read_spec`.
    """
    try:
        if check:
            _check_class_reads(config, family, rules)
        spec = _read_spec(config, family, rules)
        if check:
            spec.current()  # computes the frequencies, and raises for those that are not finite
    except ImpossibleSize as problem:
        raise BadSource(f"config.json describes {problem}; correct it") from None
    except (ArithmeticError, RecipeError) as problem:
        reason = str(problem).partition(";")[0]
        raise BadSource(
            f"config.json has RoPE settings that contradict each other ({reason}); correct them"
        ) from None
    return spec


def _read_spec(config: Config, family: Family, rule_set: RuleSet) -> RopeSpec:
    """Return the RoPE of a config, by the rules of one version of one runtime.

    Args:
        config: The content of config.json.
        family: Its family.
        rule_set: How this runtime reads a config: where it looks for the RoPE dictionary, and how
            it computes each rope type (`types`).
    """
    # the sizes, the RoPE dictionary ({"rope_type": "yarn", "factor": 4.0}), and the base
    part = text_part(config, family)
    sizes = geometry(config, family)
    rope, notes = rope_dict(part, family, rule_set)
    theta = _theta(part, rope, family, rule_set)
    if theta is None:
        theta = family.defaults.theta
        has_dictionary = bool(part.get("rope_scaling")) or _has_newer_dictionary(part, rule_set)
        if has_dictionary and family.defaults.unstated_theta is not None:
            theta = family.defaults.unstated_theta
        notes.append(f"rope_theta is absent: the class default {theta:g} holds")

    # the rope type, which a runtime may read as another one (`su` of Phi-3 is longrope)
    stated_type = rope_type(rope, rule_set)
    if stated_type not in rule_set.types:
        raise UnknownRopeType(stated_type)
    kind = rule_set.types[stated_type].read_as or stated_type
    rules = rule_set.types[kind]  # those of this type
    rope = _with_original_at_top(part, rope, family, rule_set, kind)
    if rules.whole_base:  # the runtime makes an int of it
        theta = float(int(theta))

    # in both, partial_rotary_factor has a meaning, and not the same
    if kind == Proportional.kind and family.keys.partial:
        raise BadSource(
            f"config.json has rope_type proportional in a {family.name} model, whose"
            " partial_rotary_factor says how much of a head has frequencies at all; write the"
            " rope_type that it was trained with"
        )

    # the frequencies
    form = _form(kind, rope, theta, rules, sizes)
    if isinstance(form, Plain) and form.theta != theta:
        notes.append(
            f"alpha {rope['alpha']:g} makes theta {theta:.12g} a fixed base of {form.theta:,.0f}"
        )
    if isinstance(form, Yarn) and rules.truncate == "read-flat" and family.writing.nested:
        # transformers#42189: truncate is looked up beside the layer types, not inside
        form = replace(form, truncate=True)

    # what is not a frequency; the classes of some families have a fixed attention factor
    attention_factor = family.hooks.attention_factor
    if attention_factor is None:
        attention_factor = _attention_factor(rope, rules, form, sizes)
    share = rotating_share(form, sizes.rotary_dim) if family.still_pairs else 1.0
    trained = _trained_context(part, rope, form, family, sizes)
    query_scaling = None
    if rules.query_beta:
        query_scaling = _query_scaling(part, rope, family, rule_set, sizes)
    return replace(
        sizes,
        form=form,
        attention_factor=attention_factor,
        softmax_scale=_softmax_scale(rope, family, rule_set),
        original_context=trained.tokens,
        original_context_source=trained.source,
        original_context_reference=trained.reference,
        rotating_share=share,
        local_form=_local_form(part, family, rule_set, form, theta),
        query_scaling=query_scaling,
        mrope_section=_mrope_section(rope),
        notes=(*sizes.notes, *notes),
    )


def _check_class_reads(config: Config, family: Family, rules: RuleSet) -> None:
    """Raise BadSource for RoPE settings on which the class of a family in transformers fails.

    It fails when a config is loaded or when the model is built. Nothing can then say with which
    RoPE the model was trained, and a checkpoint that ropeconv made of it could not be validated.

    Args:
        config: The content of config.json.
        family: Its family.
        rules: How the newest transformers reads the config.
    """
    # code of the model's own may read such settings
    has_class_in_transformers = family.source.startswith("transformers ")
    if not has_class_in_transformers or family.origin:
        return

    part = text_part(config, family)
    rope, _ = rope_dict(part, family, rules)
    _check_one_dictionary(rope, family)
    _check_local_layers(part, family)
    kind = _check_type(rope, family)
    starts_from_length = kind in SCALED_FROM

    # lengths
    if is_null(part, ORIGINAL) and null_meaning(family, ORIGINAL) == "refused":
        raise BadSource(
            f"config.json has {ORIGINAL} = null, on which the {family.name} class in transformers"
            " fails; leave the key out"
        )
    if starts_from_length and is_null(_place_of_original(part, rope, family), ORIGINAL):
        raise BadSource(
            f"config.json has {ORIGINAL} = null, and transformers fails on that with rope_type"
            f" {kind}; write the length that the model was trained on"
        )

    # numbers of the RoPE dictionary; null is correct where transformers has a formula instead, as
    # for attention_factor
    has_share = kind in SCALINGS or reads_share(family)
    numbers = ["rope_theta", "partial_rotary_factor"] if has_share else ["rope_theta"]
    for key in numbers:
        if is_null(rope, key):
            raise BadSource(f"config.json has {key} = null in its RoPE settings; write a number")
    if kind == "yarn" and "factor" not in rope:
        raise BadSource(
            "config.json has no factor in its RoPE settings, and transformers fails on yarn without"
            " it; write the factor that the model was trained with"
        )

    # which dimensions rotate
    share = rope.get("partial_rotary_factor", part.get("partial_rotary_factor"))
    if kind in SCALINGS and not reads_share(family) and share not in (None, 1):
        # the scalings of modeling_rope_utils.py read it in every class
        raise BadSource(
            f"config.json has partial_rotary_factor = {shown(share)}, with which transformers"
            f" scales a part of each head, and the {family.name} class rotates the whole head;"
            " remove it"
        )
    for key in family.keys.head_dim:
        fails_on_null = null_meaning(family, key) == "refused-yarn" and kind in ("yarn", "longrope")
        if fails_on_null and is_null(part, key):
            raise BadSource(
                f"config.json has {key} = null, and transformers fails on that with rope_type"
                f" {kind}; write a number there, or leave the key out"
            )


def reads_share(family: Family) -> bool:
    """Whether the class of a family rotates a part of each head by partial_rotary_factor."""
    keys = family.keys
    return bool(keys.partial or family.writing.share_of or family.mla or family.still_pairs)


ORIGINAL = "original_max_position_embeddings"
SCALED_FROM = ("yarn", "llama3", "longrope")
"""Types whose scaling starts from the length of ORIGINAL."""
OLDER_NAMES = {"su": ("phi3", "phi4_multimodal"), "mrope": ("qwen2_vl", "qwen2_5_vl")}
"""Names of rope types that transformers 5 reads only in the classes of some families."""


def _check_one_dictionary(rope: JsonObject, family: Family) -> None:
    """Raise BadSource for settings of each layer type in a class that reads one dictionary."""
    if family.writing.nested:
        return
    names = [name for name, value in rope.items() if isinstance(value, dict)]
    is_flat = "rope_type" in rope or "type" in rope
    if not names or is_flat:
        return
    # it fails, or, where the class has no layer types, ignores them
    raise BadSource(
        f"config.json has RoPE settings for {' and '.join(names)}, and the {family.name} class in"
        " transformers reads one dictionary for all layers; write the settings that the model was"
        " trained with there, not inside another object"
    )


def _check_local_layers(part: Config, family: Family) -> None:
    """Raise BadSource for a config that scales layers with a window, which keep their RoPE."""
    if not family.writing.nested or "local" not in layer_types(part, family).values():
        return
    name = settings_name(part, family, "local")
    settings = nested_settings(part, family, "local")
    place = f"rope_parameters.{name}"
    if family.name in SCALING_OF_ALL_LAYERS:
        newer = part.get("rope_parameters")
        if newer and name not in newer:
            raise BadSource(
                f"config.json has rope_parameters without {name}, and the {family.name} class in"
                " transformers takes only settings for each layer type there; write them so"
            )
        if part.get("rope_scaling"):
            settings = part["rope_scaling"]
            place = "rope_scaling, which holds for all layers of this class"
    kind = settings.get("rope_type", "default")
    if not kind:
        raise BadSource(f"config.json has no rope_type in {place}; write the type, such as default")
    if kind in SCALINGS:
        raise BadSource(
            f"config.json scales the layers with a window too ({kind} in {place}), and ropeconv"
            " extends only models whose layers with a window are not scaled; give the model as it"
            " was before that scaling"
        )


SCALINGS = ("linear", "dynamic", *SCALED_FROM)
SCALING_OF_ALL_LAYERS = ("modernbert", "modernbert_decoder")
"""Families whose class puts rope_scaling into the settings of every layer type."""


def _check_type(rope: JsonObject, family: Family) -> str:
    """Return the rope type of a dictionary as the class in transformers reads it.

    Raises:
        BadSource: The class has no code for it.
    """
    # rope_type counts before type, also if it is null (modeling_rope_utils.py,
    # standardize_rope_params)
    stated = rope.get("rope_type", rope.get("type", "default"))
    if not stated:
        value = "null" if stated is None else shown(stated)
        raise BadSource(
            f"config.json has rope_type = {value} in its RoPE settings; write the type, such as"
            " yarn, or default for none"
        )
    if stated in OLDER_NAMES and family.name not in OLDER_NAMES[stated]:
        name = NOT_A_SCALING[stated]
        raise BadSource(
            f"config.json has rope_type {stated}, which the {family.name} class in transformers"
            f" does not have; write {name}"
        )
    return str(NOT_A_SCALING.get(stated, stated))


def _place_of_original(part: Config, rope: JsonObject, family: Family) -> JsonObject:
    """Return the dictionary from which the class takes the trained length, also if it is null."""
    # at the top level of a config it counts first, but not beside dictionaries of each layer type
    # (modeling_rope_utils.py, standardize_rope_params)
    if ORIGINAL in part and not family.writing.nested:
        return part
    return rope


def _mrope_section(rope: JsonObject) -> tuple[int, ...]:
    """Return the pairs that rotate by each section of positions; empty without such numbers."""
    section = rope.get("mrope_section")
    if not isinstance(section, list) or not all(isinstance(pairs, int) for pairs in section):
        return ()
    return tuple(section)


def rope_dict(
    part: Config, family: Family, rules: RuleSet | None = None
) -> tuple[JsonObject, list[str]]:
    """Return the RoPE dictionary that a runtime uses for the global layers, and notes on it.

    Args:
        part: The text part of a config.
        family: The family of the model.
        rules: How the runtime reads the config, by default as the newest transformers.

    Returns:
        The dictionary, such as {"rope_type": "yarn", "factor": 4.0}, empty without one; and a list
        of notes for people: one sentence where the dictionary is the default of the class, else
        none.
    """
    rules = rules or newest("transformers").rule_set(family.name)

    # Some families, as Gemma 3, have a dictionary for each layer type in rope_parameters:
    # {"full_attention": {...}, "sliding_attention": {...}}. A runtime that does not look inside
    # reads rope_scaling, or nothing. In one that reads both, rope_scaling wins.
    if _has_dictionary_of_each_type(part, family):
        settings: JsonObject = {}
        if rules.nested:
            settings.update(nested_settings(part, family, "global"))
        scaling = part.get("rope_scaling")
        if "rope_scaling" in rules.schemas and scaling:
            ignores_type = family.name in SCALING_BEHIND_DEFAULT and rules.nested
            if ignores_type and part.get("rope_parameters") is None:
                settings["rope_type"] = "default"
            settings.update(scaling)
        return settings, []

    # one dictionary, under the new name, rope_parameters, or the old one, rope_scaling, in the
    # order in which this runtime looks for them
    for name in rules.schemas:
        if part.get(name):
            return part[name], []

    # no dictionary: the class may have a scaling by default, as that of gpt-oss, which an empty
    # rope_parameters switches off
    class_default = family.defaults.scaling
    if class_default is None or _has_newer_dictionary(part, rules):
        return {}, []
    note = f"rope_scaling is absent: the class default {class_default['rope_type']} holds"
    return class_default, [note]


SCALING_BEHIND_DEFAULT = ("gemma3", "gemma3n", "olmo3", "t5gemma2")
"""Families whose class puts rope_scaling into {"rope_type": "default"}.

A `type` without rope_type then has no effect (configuration_gemma3.py of transformers 5.23,
convert_rope_params_to_dict).
"""


def _has_newer_dictionary(part: Config, rules: RuleSet) -> bool:
    """Whether a runtime finds rope_parameters in a config, which may be empty."""
    return rules.nested and part.get("rope_parameters") is not None


def _has_dictionary_of_each_type(part: Config, family: Family) -> bool:
    """Whether a config has a RoPE dictionary for each type of layer, as Gemma 3 in transformers 5.

    Gemma 4, whose slowest pairs do not rotate, may have one dictionary for all layers instead.
    """
    if not family.writing.nested:
        return False
    if family.still_pairs:
        return bool(nested_settings(part, family, "global"))
    return True


def rope_type(rope: JsonObject, reader: RuleSet) -> str:
    """Return the rope type of a RoPE dictionary, by the key that the rules `reader` prefer."""
    fallback = "rope_type" if reader.type_key == "type" else "type"
    name = rope.get(reader.type_key) or rope.get(fallback)
    return str(NOT_A_SCALING.get(name, name))


def _theta(part: Config, rope: JsonObject, family: Family, reader: RuleSet) -> float | None:
    """Return the base (rope_theta) that a runtime reads from a config; None where it has none.

    Args:
        part: The text part of a config.
        rope: Its RoPE dictionary, as this runtime finds it.
        family: The family of the model.
        reader: How the runtime reads the config.
    """
    # `reader.theta` is a number, if the runtime has a constant base; or the name of the place where
    # it looks for the base, such as "top" for the top level
    if not isinstance(reader.theta, str):
        return reader.theta
    value = _find_theta(part, rope, family, place=reader.theta)
    if value is not None:
        # in messages, any key of the base is called rope_theta
        theta = number({"rope_theta": value}, "rope_theta")
        if theta <= 1:
            raise BadSource(f"config.json has rope_theta = {shown(value)}; a base must be above 1")
        return theta

    # An absent key means the default of the class. {"rope_theta": null} is an error in most
    # classes. It is correct in a config with a base in rope_parameters, where only newer classes
    # look for it.
    null_keys = [key for key in family.keys.theta if is_null(part, key)]
    is_in_newer_dictionary = reader.theta == "top" and bool(part.get("rope_parameters"))
    if null_keys and not is_in_newer_dictionary:
        default = f"leave the key out for {family.defaults.theta:g}"
        raise BadSource(f"config.json has {null_keys[0]} = null; write a number, or {default}")
    return None


def _find_theta(part: Config, rope: JsonObject, family: Family, place: str) -> Any:
    """Return the base in a place of a config, of whatever type it is; None where it is not there.

    Args:
        part: The text part of the config.
        rope: Its RoPE dictionary.
        family: The family, with the keys that it has for the base, such as rotary_emb_base.
        place: One of these.

            - "attn_config": {"attn_config": {"rope_theta": 5e5}}, as DBRX has it.
            - "nested": {"rope_parameters": {"rope_theta": 5e5}}, only in the RoPE dictionary.
            - "top": {"rope_theta": 5e5}, only at the top level.
            - "dict": in the RoPE dictionary, else at the top level.
    """
    if place == "attn_config":
        return first_present(part, ("attn_config.rope_theta",))
    if place == "nested":
        return rope.get("rope_theta")

    # a list with a base for each layer, which a few families have, counts before both other places
    value = _layer_theta(part, family, "global")
    if value is None and place == "dict":
        value = rope.get("rope_theta")
    if value is None:
        value = first_present(part, family.keys.theta)
    return value


def _layer_theta(part: Config, family: Family, kind: Kind) -> float | None:
    """Return the base of the layers of a kind, from a list with one per layer; None without it."""
    if not family.keys.layer_theta:
        return None
    thetas = part.get(family.keys.layer_theta)
    if not isinstance(thetas, list):  # one number for all layers
        return thetas

    # the list may have 0 for a layer, which is not a base
    kinds = kinds_of(part, family, layer_names(part, family, len(thetas)))
    bases = set()
    for base, layer_kind in zip(thetas, kinds, strict=False):
        if base and layer_kind == kind:
            bases.add(float(base))
    if len(bases) > 1:
        different = " and ".join(f"{base:g}" for base in sorted(bases))
        raise BadSource(
            f"config.json has layers with different bases in {family.keys.layer_theta},"
            f" {different}; a method extends only one base; give these layers the same base"
        )
    if not bases:
        return None
    return bases.pop()


def _local_form(
    part: Config, family: Family, reader: RuleSet, form: Form, theta: float
) -> Form | None:
    """Return the formula of the frequencies of layers with a window; None for a model without them.

    Args:
        part: The text part of the config.
        family: The family of the model.
        reader: How the runtime reads the config. Its `local` is "own" if these layers have a base
            of their own, "same-theta" if they have the base of the other layers without a scaling,
            and "same" if they rotate like the other layers.
        form: The formula of the other layers.
        theta: The base of the other layers.
    """
    # "local" is the kind of a layer with a window and frequencies of its own
    if "local" not in layer_types(part, family).values():
        return None
    if reader.local == "same":
        return form
    if reader.local == "same-theta":
        return Plain(theta)

    # 1. Gemma 3 in transformers 5: {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}},
    # if the runtime reads such nested dictionaries
    reads_nested = reader.nested
    class_default = family.defaults.local_theta
    if reads_nested:
        settings = nested_settings(part, family, "local")
        if settings:
            return Plain(number(settings, "rope_theta", class_default or theta))

    # 2. Granite: a list with a base for each layer; Gemma 3: the key rope_local_base_freq
    local_theta = _layer_theta(part, family, "local")
    if local_theta is None and class_default is not None:
        local_theta = first_present(part, family.keys.local_theta, class_default)
    if local_theta is not None:
        # `number` checks the value of a key; messages about a wrong value call the key "local"
        return Plain(number({"local": local_theta}, "local"))

    # 3. The config says nothing about these layers. Code that reads nested dictionaries then takes
    # the default base of the class, and other code the base of the other layers.
    if reads_nested:
        return Plain(family.defaults.theta)
    return Plain(theta)


def _softmax_scale(rope: JsonObject, family: Family, reader: RuleSet) -> float:
    """Return the scale of all logits of MLA; 1 for other models."""
    if not family.mla or reader.softmax_scale == "none" or not rope.get("factor"):
        return 1.0
    if reader.softmax_scale != "factor" and not rope.get("mscale_all_dim"):
        return 1.0
    if reader.softmax_scale == "unless-one" and rope.get("attention_factor") == 1:
        return 1.0
    slope = 0.1 * number(rope, "mscale_all_dim", 1.0)
    return temperature_attention_factor(number(rope, "factor"), slope) ** 2


def _query_scaling(
    part: Config, rope: JsonObject, family: Family, reader: RuleSet, sizes: RopeSpec
) -> QueryScaling | None:
    """Return how a runtime scales queries by their position, as in Ministral 3; None without.

    The query at the position p is multiplied by 1 + beta ln(1 + floor(p / length)).

    Args:
        part: The text part of the config.
        rope: Its RoPE dictionary.
        family: The family of the model.
        reader: How the runtime reads the config.
        sizes: The RoPE of the model, for its context.
    """
    # the key of beta in the family, such as "llama_4_scaling_beta", and the place where the runtime
    # looks for beta; both may be empty
    beta_key = family.keys.query_beta
    place_of_beta = reader.query_beta
    if not beta_key or not place_of_beta:
        return None

    # "rope": {"rope_parameters": {"llama_4_scaling_beta": 0.1, ...}}
    settings = rope
    # "top": {"llama_4_scaling": {"beta": 0.1, ...}}
    if place_of_beta == "top":
        settings = part.get(QUERY_SCALE) or {}
        beta_key = "beta"
    if not settings.get(beta_key):
        return None

    # the length beside beta; or at the top level, in a runtime with a default length for it there
    length_key = "original_max_position_embeddings"
    lengths = settings
    default_at_top = reader.query_length  # 0 for a runtime that does not look there
    if default_at_top:
        lengths = {length_key: part.get(length_key, default_at_top)}
    length = int(number(lengths, length_key, sizes.context))
    return QueryScaling(number(settings, beta_key), length)


def _trained_context(
    part: Config, rope: JsonObject, form: Form, family: Family, sizes: RopeSpec
) -> TrainedLength:
    """Return the tokens that a model was trained for before its scaling, and how that is known.

    From certain to uncertain: the config has the number ("config"), it follows from the factor
    ("factor"), or from a list of models that declare more than they were trained for ("family").
    The declared context is the last guess ("declared").

    Args:
        part: The text part of the config.
        rope: Its RoPE dictionary.
        form: The formula of the frequencies.
        family: The family of the model, with this list.
        sizes: The RoPE of the model, with the declared context.
    """
    key = "original_max_position_embeddings"
    declared = sizes.context

    # YaRN, Llama 3.1 and LongRoPE have the trained length in their formulas
    if isinstance(form, (Yarn, Llama3)):
        is_in_config = part.get(key) or rope.get(key)
        return TrainedLength(form.original_context, "config" if is_in_config else "declared")
    if isinstance(form, LongRope) and form.original_context < declared:
        return TrainedLength(form.original_context, "config")

    # position interpolation
    if isinstance(form, InterpolatedForm):
        # 1. the RoPE dictionary has the trained length
        original = rope.get(key)
        if original:
            return TrainedLength(int(original), "config")

        # 2. Vicuna 16k and LongChat declare the trained length, and the extended one beside it
        if part.get("max_sequence_length") == declared * form.factor:
            return TrainedLength(declared, "config")

        # 3. most others declare the extended length, which is divided by the factor
        quotient = max(1, round(declared / form.factor))
        if quotient >= SHORTEST_TRAINED:
            return TrainedLength(quotient, "factor")

        # 4. Some declare the trained length, as the documentation of transformers 4.31 asked for:
        # 2048 with a factor of 8. They are known by the quotient, since no model was trained for
        # only 256 tokens.
        if declared >= SHORTEST_TRAINED:
            return TrainedLength(declared, "factor")
        return TrainedLength(quotient, "factor")

    # no scaling; the dual chunk attention of Qwen2.5-1M has the trained length in its settings
    original = (part.get(DUAL_CHUNK) or {}).get(key)
    if original and original < declared:
        return TrainedLength(int(original), "config")
    # the list of the family has pairs of a declared and a trained length; with a `doubt`, a pair
    # may not hold for this model
    for known in family.trained:
        is_certain = known.doubt is None
        if known.declared == declared and is_certain:
            return TrainedLength(known.trained, "family", known.source)
    return TrainedLength(declared, "declared")
