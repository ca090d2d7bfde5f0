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
ROUNDING = 5e-7
ONE_LIST = "give one list: leave --keep-short out"
OTHER_WAYS = "use --encoding factors, which carries any frequencies"
WITH_ZEROS = "use --encoding buffers, or --to gguf, which carry frequencies that are 0"


@config_encoding(
    "native", order=1, max_ulp=64
)  # ramps and powers are evaluated in float32 by every runtime
def native(schedule: Schedule, spec: RopeSpec, family: Family) -> RopeSetting:
    """Write the schedule as a rope type of transformers.

    Raises:
        UnsupportedBake: Where no rope type gives these frequencies and this attention factor, and
            where the class of the family does not support that type.
    """
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
        rope |= {"partial_rotary_factor": form.partial_rotary_factor}
        rope |= {} if form.factor == 1 else {"factor": form.factor}
    elif isinstance(form, Yarn):
        rope |= _yarn(form, schedule, spec)
    elif isinstance(form, LongRope):
        return _longrope(rope, form, schedule, family)
    if not isinstance(form, Yarn) and abs(schedule.attention_factor - 1) > SAME:
        given = f"attention_factor {schedule.attention_factor:g}"
        kind = f"rope_type {form.kind}"
        raise UnsupportedBake(given, kind, "it has no key for that", OTHER_WAYS)
    return RopeSetting(rope, form.theta, schedule.context)


def _check_class(
    form: Form, schedule: Schedule, spec: RopeSpec, family: Family, others: str
) -> None:
    """Raise UnsupportedBake where the class of the family does not compute the rope type of a form
    as written.
    """
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
    if not family.writing.pinned_original or not isinstance(form, (Yarn, Llama3, LongRope)):
        return
    if form.original_context != spec.query_length and (two_lists or not isinstance(form, LongRope)):
        why = f"that length is also the unit of its query scale and must remain {spec.query_length}"
        repair = ONE_LIST if isinstance(form, LongRope) else OTHER_WAYS
        raise UnsupportedBake(
            f"an original context of {form.original_context}", family.name, why, repair
        )


def _yarn(form: Yarn, schedule: Schedule, spec: RopeSpec) -> JsonObject:
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
    usual = abs(attention_factor - temperature_attention_factor(form.factor)) < SAME
    scaled = abs(schedule.softmax_scale - 1) > ROUNDING
    if spec.mla and scaled:  # for vLLM, an attention_factor of 1 means no softmax scale
        slope = 0.1 * math.log(form.factor)
        root = math.sqrt(schedule.softmax_scale)
        rope |= {"mscale": _as_written((attention_factor * root - 1) / slope)}
        rope |= {"mscale_all_dim": _as_written((root - 1) / slope)}
        del rope["attention_factor"]
    elif not (
        spec.mla or usual or form.factor <= 1
    ):  # for readers that do not know attention_factor
        rope["mscale"], rope["mscale_all_dim"] = mscale_for(form.factor, attention_factor)
    return rope


def _as_written(mscale: float) -> float:
    """A number as people write it, where it only differs by the rounding of a GGUF file's numbers
    of 32 bits.
    """
    short = float(f"{mscale:.6g}")
    return short if abs(short - mscale) < ROUNDING else round(mscale, 12)


def _longrope(rope: JsonObject, form: LongRope, schedule: Schedule, family: Family) -> RopeSetting:
    lists = {"short_factor": form.short_factor, "long_factor": form.long_factor}
    rope |= {name: written_divisors(factors) for name, factors in lists.items()}
    factor = schedule.context / form.original_context
    usual = longrope_attention_factor(factor, form.original_context)
    if family.writing.longrope == "original":
        if abs(schedule.attention_factor - usual) <= 1e-6:
            return RopeSetting(rope, form.theta, schedule.context, form.original_context)
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
    if family.writing.longrope == "mscale" or abs(schedule.attention_factor - usual) > SAME:
        rope |= {
            "short_mscale": schedule.attention_factor,
            "long_mscale": schedule.attention_factor,
        }
    return RopeSetting(rope, form.theta, schedule.context, form.original_context)
