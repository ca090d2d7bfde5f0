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

SAME = 1e-9
"""Relative difference of attention factors that are the same."""
ROUNDING = 5e-7
"""Relative difference that the numbers of a GGUF file, of 32 bits, may have."""
ONE_LIST = "give one list: leave --keep-short out"
OTHER_WAYS = "use --encoding factors, which carries any frequencies"
WITH_ZEROS = "use --encoding buffers, or --to gguf, which carry frequencies that are 0"


# 64 ulp, since every runtime evaluates ramps and powers in float32
@config_encoding("native", order=1, max_ulp=64)
def native(schedule: Schedule, spec: RopeSpec, family: Family) -> RopeSetting:
    """Write the schedule as a rope type of transformers.

    Raises:
        UnsupportedBake: Where no rope type gives these frequencies and this attention factor, and
            where the class of the family does not support that type.
    """
    # a vector without a formula has no rope type
    form = schedule.form
    others = WITH_ZEROS if count_zero(schedule.inv_freq) else OTHER_WAYS
    if form is None:
        why = "no rope type has its formula"
        if spec.rotating_share < 1:
            why += (
                " beside pairs that stand still: proportional has a base and one factor, as"
                " --linear gives"
            )
        raise UnsupportedBake("this frequency vector", "the native keys", why, others)

    # the keys of each rope type, by the names that transformers reads (modeling_rope_utils.py)
    _check_class(form, schedule, spec, family, others)
    rope: JsonObject = {"rope_type": form.kind}
    if isinstance(form, InterpolatedForm):
        rope["factor"] = form.factor
    elif isinstance(form, Llama3):
        rope |= {
            "factor": form.factor,
            "low_freq_factor": form.low_freq_factor,
            "high_freq_factor": form.high_freq_factor,
            "original_max_position_embeddings": form.original_context,
        }
    elif isinstance(form, Proportional):
        rope["partial_rotary_factor"] = form.partial_rotary_factor
        if form.factor != 1:
            rope["factor"] = form.factor
    elif isinstance(form, Yarn):
        rope |= _yarn(form, schedule, spec)
    elif isinstance(form, LongRope):
        return _longrope(rope, form, schedule, family)

    # of the types that come here, only yarn has a key for the attention factor
    if not isinstance(form, Yarn) and abs(schedule.attention_factor - 1) > SAME:
        given = f"attention_factor {schedule.attention_factor:g}"
        kind = f"rope_type {form.kind}"
        raise UnsupportedBake(given, kind, "it has no key for that", OTHER_WAYS)
    return RopeSetting(rope, form.theta, schedule.context)


def _check_class(
    form: Form, schedule: Schedule, spec: RopeSpec, family: Family, others: str
) -> None:
    """Raise UnsupportedBake where the family's class does not compute a form with these keys."""
    kind = f"rope_type {form.kind}"
    two_lists = schedule.short_inv_freq is not None

    if form.kind not in family.writing.types:
        known = f"its class supports {', '.join(family.writing.types)}"
        raise UnsupportedBake(kind, family.name, known, ONE_LIST if two_lists else others)
    if isinstance(form, Proportional) and (spec.rotary_dim != spec.head_dim or family.keys.partial):
        why = (
            "its partial_rotary_factor has another meaning there, and the type would rotate the"
            " whole head"
        )
        raise UnsupportedBake(kind, family.name, why, WITH_ZEROS)

    # Ministral 3 scales queries by the length under original_max_position_embeddings, so a form
    # that has another length there would change them
    if not family.writing.pinned_original or not isinstance(form, (Yarn, Llama3, LongRope)):
        return
    may_change = isinstance(form, LongRope) and not two_lists
    if form.original_context != spec.query_length and not may_change:
        why = f"that length is also the unit of its query scale and must remain {spec.query_length}"
        repair = ONE_LIST if isinstance(form, LongRope) else OTHER_WAYS
        raise UnsupportedBake(
            f"an original context of {form.original_context}", family.name, why, repair
        )


def _yarn(form: Yarn, schedule: Schedule, spec: RopeSpec) -> JsonObject:
    """The keys of YaRN."""
    rope: JsonObject = {
        "factor": form.factor,
        "original_max_position_embeddings": form.original_context,
        "beta_fast": form.beta_fast,
        "beta_slow": form.beta_slow,
        "attention_factor": float(schedule.attention_factor),
    }
    if not form.truncate:
        rope["truncate"] = False

    attention_factor = schedule.attention_factor
    is_usual = abs(attention_factor - temperature_attention_factor(form.factor)) < SAME
    has_softmax_scale = abs(schedule.softmax_scale - 1) > ROUNDING
    if spec.mla and has_softmax_scale:
        # for vLLM, an attention_factor of 1 means no softmax scale
        slope = 0.1 * math.log(form.factor)
        root = math.sqrt(schedule.softmax_scale)
        rope["mscale"] = _as_written((attention_factor * root - 1) / slope)
        rope["mscale_all_dim"] = _as_written((root - 1) / slope)
        del rope["attention_factor"]
    elif not spec.mla and not is_usual and form.factor > 1:
        # for readers that do not know attention_factor
        rope["mscale"], rope["mscale_all_dim"] = mscale_for(form.factor, attention_factor)
    return rope


def _as_written(mscale: float) -> float:
    """A number as people write it, where only the rounding to 32 bits of a GGUF file differs."""
    short = float(f"{mscale:.6g}")
    if abs(short - mscale) < ROUNDING:
        return short
    return round(mscale, 12)


def _longrope(rope: JsonObject, form: LongRope, schedule: Schedule, family: Family) -> RopeSetting:
    """The setting of a pair of factor lists."""
    rope["short_factor"] = written_divisors(form.short_factor)
    rope["long_factor"] = written_divisors(form.long_factor)

    # classes like Phi-3's have no key for the attention factor: they derive it from the two lengths
    factor = schedule.context / form.original_context
    usual = longrope_attention_factor(factor, form.original_context)
    if family.writing.longrope == "original":
        if abs(schedule.attention_factor - usual) <= 1e-6:
            return RopeSetting(
                rope=rope,
                theta=form.theta,
                context=schedule.context,
                top_original=form.original_context,
            )
        if schedule.short_inv_freq is not None:
            raise UnsupportedBake(
                "an attention_factor of your own",
                f"{family.name} with two factor lists",
                "its class derives the attention factor from the length at which the lists change",
                f"pass --attention-factor {usual:.9g}, which it derives, give one list, or take"
                " --to gguf",
            )
        return RopeSetting(
            rope, form.theta, *original_for(schedule.context, schedule.attention_factor)
        )

    rope |= {
        "factor": float(factor),
        "attention_factor": float(schedule.attention_factor),
        "original_max_position_embeddings": form.original_context,
    }
    # the names under which vLLM reads the attention factor (Phi3LongRoPEScaledRotaryEmbedding)
    if family.writing.longrope == "mscale" or abs(schedule.attention_factor - usual) > SAME:
        rope["short_mscale"] = schedule.attention_factor
        rope["long_mscale"] = schedule.attention_factor
    return RopeSetting(
        rope=rope, theta=form.theta, context=schedule.context, top_original=form.original_context
    )
