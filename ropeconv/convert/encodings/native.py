"""Encoding `native`: the rope type of transformers that has the formula of the schedule, in
config.json.
"""

import math

from ...errors import UnsupportedBake
from ...formats.jsontext import JsonObject
from ...models.family import Family
from ...rope.forms import (
    Form,
    InterpolatedForm,
    Llama3,
    LongRope,
    Yarn,
    count_zero,
    longrope_attention_factor,
    mscale_for,
    temperature_attention_factor,
    written_divisors,
)
from ...rope.schedule import Schedule
from ...rope.spec import Proportional, RopeSpec
from ..config_edit import RopeSetting
from ..encoding import config_encoding, original_for

SAME_FACTOR = 1e-9
"""Relative difference of attention factors that are the same."""
FLOAT32_ROUNDING = 5e-7
"""Relative difference that the numbers of a GGUF file, of 32 bits, may have."""
TAKE_ONE_LIST = "give one list: leave --keep-short out"
TAKE_FACTORS = "use --encoding factors, which carries any frequencies"
TAKE_BUFFERS = "use --encoding buffers, or --to gguf, which carry frequencies that are 0"


# 64 ulp, since every runtime evaluates ramps and powers in float32
# 64 ulp: runtimes compute the same formula in different orders, which rounds differently
@config_encoding("native", order=1, max_ulp=64)
def native(schedule: Schedule, spec: RopeSpec, family: Family) -> RopeSetting:
    """Write RoPE frequencies as a rope type of transformers, such as "yarn", with its keys.

    Args:
        schedule: The frequencies and the attention factor to write. `schedule.form` is the formula
            of the frequencies, such as `Yarn`, or None for frequencies without a formula.
        spec: The RoPE of the source.
        family: The model family of the source.

    Raises:
        UnsupportedBake: Where no rope type gives these frequencies and this attention factor, and
            where the class of the family does not support that type.
    """
    form = schedule.form

    # The advice in errors. For a frequency of 0, the encoding "factors" would need an infinite
    # factor, which JSON cannot hold.
    other_encoding = TAKE_FACTORS
    if count_zero(schedule.inv_freq):
        other_encoding = TAKE_BUFFERS

    # frequencies without a formula
    if form is None:
        why = "no rope type has its formula"
        # p-RoPE, where some pairs of dimensions have the frequency 0: the type "proportional" has
        # such pairs, but computes all further frequencies from a base and one factor
        if spec.rotating_share < 1:
            why += (
                " beside pairs that stand still: proportional has a base and one factor, as"
                " --linear gives"
            )
        raise UnsupportedBake("this frequency vector", "the native keys", why, other_encoding)
    _check_class(form, schedule, spec, family, other_encoding)

    rope: JsonObject = {"rope_type": form.kind}

    # longrope and yarn, which have keys for the attention factor
    if isinstance(form, LongRope):
        return _longrope(rope, form, schedule, family)
    if isinstance(form, Yarn):
        rope |= _yarn(form, schedule, spec)
        return RopeSetting(rope=rope, theta=form.theta, context=schedule.context)

    # other types, such as "linear" and "llama3", which have no key for it
    rope |= _keys_of_form(form)
    has_attention_factor = abs(schedule.attention_factor - 1) > SAME_FACTOR
    if has_attention_factor:
        given = f"attention_factor {schedule.attention_factor:g}"
        kind = f"rope_type {form.kind}"
        raise UnsupportedBake(given, kind, "it has no key for that", TAKE_FACTORS)
    return RopeSetting(rope=rope, theta=form.theta, context=schedule.context)


def _check_class(
    form: Form, schedule: Schedule, spec: RopeSpec, family: Family, other_encoding: str
) -> None:
    """Raise UnsupportedBake for a formula that the family's class in transformers cannot compute.

    Args:
        form: The formula of the frequencies. `form.kind` is its `rope_type` in transformers.
        schedule: The frequencies.
        spec: The RoPE of the source.
        family: The model family.
        other_encoding: Advice for the message, such as "use --encoding factors, ...".
    """
    kind = f"rope_type {form.kind}"
    has_two_lists = schedule.short_inv_freq is not None  # LongRoPE with a short and a long list

    # 1. The class does not have the rope type.
    if form.kind not in family.writing.types:
        known = f"its class supports {', '.join(family.writing.types)}"
        # only "native" can write two lists, so another encoding is no advice for them
        advice = TAKE_ONE_LIST if has_two_lists else other_encoding
        raise UnsupportedBake(kind, family.name, known, advice)

    # 2. The type "proportional" in a class that rotates a part of each head. Both read the key
    # partial_rotary_factor: the type as the share of pairs that rotate, over the whole head, and
    # the class as the size of the part.
    class_rotates_a_part = spec.rotary_dim != spec.head_dim or bool(family.keys.partial)
    if isinstance(form, Proportional) and class_rotates_a_part:
        why = (
            "its partial_rotary_factor has another meaning there, and the type would rotate the"
            " whole head"
        )
        raise UnsupportedBake(kind, family.name, why, TAKE_BUFFERS)

    # 3. Ministral 3: original_max_position_embeddings is also the unit of the query scaling, so
    # this length must not change (writing.pinned_original). YaRN, Llama 3 and two lists of LongRoPE
    # depend on the length; one list of LongRoPE does not.
    if not family.writing.pinned_original:
        return
    if not isinstance(form, (Yarn, Llama3, LongRope)):
        return
    if isinstance(form, LongRope) and not has_two_lists:
        return
    fixed_length = spec.query_length
    if form.original_context != fixed_length:
        why = f"that length is also the unit of its query scale and must remain {fixed_length}"
        advice = TAKE_ONE_LIST if isinstance(form, LongRope) else TAKE_FACTORS
        raise UnsupportedBake(
            f"an original context of {form.original_context}", family.name, why, advice
        )


def _keys_of_form(form: Form) -> JsonObject:
    """The keys of a rope type beside `rope_type` (modeling_rope_utils.py of transformers).

    A form with only a base ("default") has none.
    """
    if isinstance(form, InterpolatedForm):
        return {"factor": form.factor}
    if isinstance(form, Llama3):
        return {
            "factor": form.factor,
            "low_freq_factor": form.low_freq_factor,
            "high_freq_factor": form.high_freq_factor,
            "original_max_position_embeddings": form.original_context,
        }
    if isinstance(form, Proportional):
        keys: JsonObject = {"partial_rotary_factor": form.partial_rotary_factor}
        if form.factor != 1:
            keys["factor"] = form.factor
        return keys
    return {}


def _yarn(form: Yarn, schedule: Schedule, spec: RopeSpec) -> JsonObject:
    """Return the keys of YaRN in config.json, such as {"factor": 4.0, "beta_fast": 32.0, ...}.

    transformers reads the attention factor from the key `attention_factor`. Other programs compute
    the attention factor from two keys of DeepSeek, `mscale` and `mscale_all_dim`, and without these
    keys as 0.1 ln(factor) + 1. In latent attention, the two keys also give the softmax scale.

    Args:
        form: YaRN with its settings.
        schedule: The attention factor, and the softmax scale of latent attention (MLA).
        spec: The RoPE of the source.
    """
    rope: JsonObject = {
        "factor": form.factor,
        "original_max_position_embeddings": form.original_context,
        "beta_fast": form.beta_fast,
        "beta_slow": form.beta_slow,
    }
    truncate: JsonObject = {} if form.truncate else {"truncate": False}

    # Latent attention (MLA) with a softmax scale: mscale and mscale_all_dim give the attention
    # factor and the softmax scale. The key attention_factor is left out, since its usual value 1
    # would make vLLM ignore the softmax scale.
    has_softmax_scale = spec.mla and abs(schedule.softmax_scale - 1) > FLOAT32_ROUNDING
    if has_softmax_scale:
        return rope | truncate | _mscale_with_softmax_scale(form, schedule)

    # all other cases
    rope["attention_factor"] = float(schedule.attention_factor)
    rope |= truncate

    # MLA without a softmax scale: mscale and mscale_all_dim would add one
    if spec.mla:
        return rope

    # the usual attention factor, 0.1 ln(factor) + 1: all programs compute it without further keys
    usual = temperature_attention_factor(form.factor)
    if abs(schedule.attention_factor - usual) < SAME_FACTOR:
        return rope

    # a scaling factor of 1: the formula of mscale multiplies by ln(1) = 0, so mscale has no effect
    if form.factor <= 1:
        return rope

    # any other attention factor
    mscale, mscale_all_dim = mscale_for(form.factor, schedule.attention_factor)
    rope["mscale"] = mscale
    rope["mscale_all_dim"] = mscale_all_dim
    return rope


def _mscale_with_softmax_scale(form: Yarn, schedule: Schedule) -> JsonObject:
    """Return the keys mscale and mscale_all_dim that give an attention factor and a softmax scale.

    For a YaRN factor s, models with latent attention (MLA, as in DeepSeek V3) compute from them the
    attention factor A and the softmax scale S:

        A = (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1)
        S = (0.1 mscale_all_dim ln s + 1)^2

    Solved for the pair, that is

        mscale = (A sqrt(S) - 1) / (0.1 ln s)
        mscale_all_dim = (sqrt(S) - 1) / (0.1 ln s)
    """
    slope = 0.1 * math.log(form.factor)
    root = math.sqrt(schedule.softmax_scale)
    mscale = (schedule.attention_factor * root - 1) / slope
    mscale_all_dim = (root - 1) / slope
    return {"mscale": _as_written(mscale), "mscale_all_dim": _as_written(mscale_all_dim)}


def _as_written(mscale: float) -> float:
    """A number as people write it, where only the rounding to 32 bits of a GGUF file differs."""
    short = float(f"{mscale:.6g}")
    if abs(short - mscale) < FLOAT32_ROUNDING:
        return short
    return round(mscale, 12)


def _longrope(rope: JsonObject, form: LongRope, schedule: Schedule, family: Family) -> RopeSetting:
    """Return the config keys of LongRoPE: two factor lists, and the attention factor.

    Args:
        rope: The RoPE dictionary, {"rope_type": "longrope"}, to which keys are added.
        form: The list for short inputs, the list for long inputs, and the length between them.
        schedule: The context and the attention factor.
        family: The model family. `family.writing.longrope` says how its class gets the attention
            factor: from the key attention_factor ("keys", most classes), from the two context
            lengths ("original", Phi-3), or from the keys short_mscale and long_mscale ("mscale").
    """
    rope["short_factor"] = written_divisors(form.short_factor)
    rope["long_factor"] = written_divisors(form.long_factor)

    # Phi-3: the class computes the attention factor from the context lengths
    computes_from_lengths = family.writing.longrope == "original"
    if computes_from_lengths:
        return _longrope_from_lengths(rope, form, schedule, family)

    # the factor by which the context grows, and the attention factor of the paper for it
    factor = schedule.context / form.original_context
    usual = longrope_attention_factor(factor, form.original_context)
    rope |= {
        "factor": float(factor),
        "attention_factor": float(schedule.attention_factor),
        "original_max_position_embeddings": form.original_context,
    }

    # vLLM ignores attention_factor. It reads short_mscale and long_mscale, and without these keys
    # uses the usual factor (Phi3LongRoPEScaledRotaryEmbedding).
    is_usual = abs(schedule.attention_factor - usual) <= SAME_FACTOR
    class_reads_mscale = family.writing.longrope == "mscale"
    if class_reads_mscale or not is_usual:
        rope["short_mscale"] = schedule.attention_factor
        rope["long_mscale"] = schedule.attention_factor

    # `top_original` is written as original_max_position_embeddings beside the RoPE dictionary
    return RopeSetting(
        rope=rope, theta=form.theta, context=schedule.context, top_original=form.original_context
    )


def _longrope_from_lengths(
    rope: JsonObject, form: LongRope, schedule: Schedule, family: Family
) -> RopeSetting:
    """The setting of LongRoPE for classes like Phi-3's, which have no key for the attention factor.

    They derive it from the declared context M and the original context O, as
    sqrt(1 + ln(M/O) / ln O).

    Args:
        rope: The RoPE dictionary, which has the two factor lists.
        form: The two factor lists, and the length at which they change.
        schedule: The context and the attention factor.
        family: The model family.
    """
    # the attention factor that the class derives from the lengths of the schedule
    factor = schedule.context / form.original_context
    derived = longrope_attention_factor(factor, form.original_context)
    if abs(schedule.attention_factor - derived) <= 1e-6:
        return RopeSetting(
            rope=rope,
            theta=form.theta,
            context=schedule.context,
            top_original=form.original_context,
        )

    # Other lengths would give the wanted attention factor. But a runtime with two different lists
    # changes from one to the other at the original context, so that must stay.
    if schedule.short_inv_freq is not None:
        raise UnsupportedBake(
            "an attention_factor of your own",
            f"{family.name} with two factor lists",
            "its class derives the attention factor from the length at which the lists change",
            f"pass --attention-factor {derived:.9g}, which it derives",
        )

    # With one list, the lengths do not matter for the frequencies. So M and O are chosen such that
    # the class derives the wanted attention factor: M is the context, or a little longer.
    declared, original, notes = original_for(schedule.context, schedule.attention_factor)
    return RopeSetting(
        rope=rope, theta=form.theta, context=declared, top_original=original, notes=notes
    )
