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
@config_encoding("native", order=1, max_ulp=64)
def native(schedule: Schedule, spec: RopeSpec, family: Family) -> RopeSetting:
    """Write the schedule as a rope type of transformers, such as "yarn", with its keys.

    Args:
        schedule: The frequencies and the attention factor to write. Its `form` is the formula that
            they follow, such as `Yarn`, or None for frequencies without one.
        spec: The RoPE of the source.
        family: The model family of the source.

    Raises:
        UnsupportedBake: Where no rope type gives these frequencies and this attention factor, and
            where the class of the family does not support that type.
    """
    form = schedule.form

    # the advice in errors; the encoding "factors" would need an infinite factor to give a frequency
    # of 0, which JSON cannot hold
    other_encoding = TAKE_FACTORS
    if count_zero(schedule.inv_freq):
        other_encoding = TAKE_BUFFERS

    # Frequencies without a formula. Where some pairs have the frequency 0 (p-RoPE), the rope type
    # "proportional" could say that, but the others must then follow from a base and one factor.
    if form is None:
        why = "no rope type has its formula"
        if spec.rotating_share < 1:
            why += (
                " beside pairs that stand still: proportional has a base and one factor, as"
                " --linear gives"
            )
        raise UnsupportedBake("this frequency vector", "the native keys", why, other_encoding)
    _check_class(form, schedule, spec, family, other_encoding)

    # the RoPE dictionary
    if isinstance(form, LongRope):
        return _longrope({"rope_type": form.kind}, form, schedule, family)
    rope: JsonObject = {"rope_type": form.kind}
    if isinstance(form, Yarn):
        rope |= _yarn(form, schedule, spec)
    else:
        rope |= _keys_of_form(form)

    # of these types, only yarn has a key for the attention factor
    has_attention_factor = abs(schedule.attention_factor - 1) > SAME_FACTOR
    if has_attention_factor and not isinstance(form, Yarn):
        given = f"attention_factor {schedule.attention_factor:g}"
        kind = f"rope_type {form.kind}"
        raise UnsupportedBake(given, kind, "it has no key for that", TAKE_FACTORS)
    return RopeSetting(rope, form.theta, schedule.context)


def _check_class(
    form: Form, schedule: Schedule, spec: RopeSpec, family: Family, other_encoding: str
) -> None:
    """Raise UnsupportedBake where the family's class does not compute a form with these keys.

    The class may not know the rope type, or give one of the keys another meaning:
    partial_rotary_factor, or original_max_position_embeddings.

    Args:
        form: The formula of the frequencies, whose `kind` is the `rope_type` of transformers.
        schedule: The frequencies.
        spec: The RoPE of the source.
        family: The model family.
        other_encoding: The advice to name another encoding, which can hold these frequencies, such
            as "use --encoding factors, ...".
    """
    # 1. a type that the class does not know; other encodings cannot hold two lists of LongRoPE
    kind = f"rope_type {form.kind}"
    has_two_lists = schedule.short_inv_freq is not None
    if form.kind not in family.writing.types:
        known = f"its class supports {', '.join(family.writing.types)}"
        repair = TAKE_ONE_LIST if has_two_lists else other_encoding
        raise UnsupportedBake(kind, family.name, known, repair)

    # 2. `proportional` computes its exponents over the whole head. A family that rotates only a
    # part of each head reads the same key, partial_rotary_factor, as the size of that part.
    rotates_a_part = spec.rotary_dim != spec.head_dim or bool(family.keys.partial)
    if isinstance(form, Proportional) and rotates_a_part:
        why = (
            "its partial_rotary_factor has another meaning there, and the type would rotate the"
            " whole head"
        )
        raise UnsupportedBake(kind, family.name, why, TAKE_BUFFERS)

    # 3. Ministral 3 scales queries in units of original_max_position_embeddings
    # (`pinned_original`), so that length cannot change. YaRN and Llama 3 have it in their formula,
    # and two lists of LongRoPE change at it. One list of LongRoPE does not depend on it.
    if not family.writing.pinned_original:
        return
    if not isinstance(form, (Yarn, Llama3, LongRope)):
        return
    if isinstance(form, LongRope) and not has_two_lists:
        return
    if form.original_context != spec.query_length:
        why = f"that length is also the unit of its query scale and must remain {spec.query_length}"
        repair = TAKE_ONE_LIST if isinstance(form, LongRope) else TAKE_FACTORS
        raise UnsupportedBake(
            f"an original context of {form.original_context}", family.name, why, repair
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
    it from a pair of keys that DeepSeek has introduced, `mscale` and `mscale_all_dim`, or without
    these as 0.1 ln(factor) + 1. The pair also gives the softmax scale of latent attention.

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

    # MLA with a softmax scale: only the pair is written, which gives both numbers. Beside it,
    # `attention_factor` = 1, the usual value, would mean to vLLM that there is no softmax scale.
    has_softmax_scale = spec.mla and abs(schedule.softmax_scale - 1) > FLOAT32_ROUNDING
    if has_softmax_scale:
        return rope | truncate | _mscale_with_softmax_scale(form, schedule)

    rope["attention_factor"] = float(schedule.attention_factor)
    rope |= truncate

    # MLA without a softmax scale: no pair, which would add a softmax scale
    if spec.mla:
        return rope

    # the usual attention factor, 0.1 ln(factor) + 1: no pair, since every program computes it
    usual = temperature_attention_factor(form.factor)
    if abs(schedule.attention_factor - usual) < SAME_FACTOR:
        return rope

    # a factor of 1: no pair, since its formula multiplies by ln(1) = 0 and so cannot give another
    # attention factor than 1
    if form.factor <= 1:
        return rope

    # any other attention factor: the pair that gives it
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
    """The setting of LongRoPE with two factor lists, and with the attention factor.

    `family.writing.longrope` says from where a class has the attention factor:

    - "keys", most classes: they read the key attention_factor.
    - "original", like Phi-3's: they derive it from the declared and the original context.
    - "mscale": they read short_mscale and long_mscale, and fail without these.

    Args:
        rope: The RoPE dictionary with its `rope_type`, to which keys are added.
        form: The two factor lists, and the length at which they change.
        schedule: The context and the attention factor.
        family: The model family.
    """
    rope["short_factor"] = written_divisors(form.short_factor)
    rope["long_factor"] = written_divisors(form.long_factor)
    derives_from_lengths = family.writing.longrope == "original"
    if derives_from_lengths:
        return _longrope_from_lengths(rope, form, schedule, family)

    # the factor s by which the context grows, and the usual attention factor for it
    factor = schedule.context / form.original_context
    usual = longrope_attention_factor(factor, form.original_context)
    rope |= {
        "factor": float(factor),
        "attention_factor": float(schedule.attention_factor),
        "original_max_position_embeddings": form.original_context,
    }

    # vLLM does not read attention_factor. It reads short_mscale and long_mscale, and without them
    # takes the usual factor (Phi3LongRoPEScaledRotaryEmbedding). So an unusual one needs them.
    is_usual = abs(schedule.attention_factor - usual) <= SAME_FACTOR
    class_reads_mscale = family.writing.longrope == "mscale"
    if class_reads_mscale or not is_usual:
        rope["short_mscale"] = schedule.attention_factor
        rope["long_mscale"] = schedule.attention_factor
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
