"""Encoding `ramp`: linear scaling as YaRN, whose ramp is moved until it divides every frequency.

Some runtimes have YaRN and no linear scaling for a kind of model. vLLM and SGLang have a class for
M-RoPE with the types default and yarn only, and SGLang computes YaRN for every type in models with
latent attention (MLA).
"""

import math

from ...errors import UnsupportedBake
from ...formats.jsontext import JsonObject
from ...models.family import Family
from ...rope.forms import InterpolatedForm, temperature_attention_factor
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ..config_edit import RopeSetting
from ..encoding import config_encoding
from .native import SAME_FACTOR

NEAR_ZERO = 1e-12
"""A value of mscale that changes nothing. Readers take 0 for an absent key, and compute the usual
attention factor."""
BEYOND_THE_HEAD = 4.0
"""How many bases below one rotation the ramp begins, which is twice the last place for one."""
OTHERWISE = "use --encoding native"


@config_encoding("ramp", order=6, max_ulp=64)
def ramp(schedule: Schedule, spec: RopeSpec, family: Family) -> RopeSetting:
    """Write linear scaling as YaRN with an attention factor of 1.

    YaRN keeps the frequency of pairs before its ramp, and divides that of pairs behind it by the
    factor, as linear scaling divides all. With r the rotary dimensions, L the trained length and
    theta the base, the code of transformers (`find_correction_range`, `linear_ramp_factor`)
    computes where the ramp begins and ends, and the share i of interpolation for pair i:

        begin = r ln(L / (2 pi beta)) / (2 ln theta)
        end   = at most r - 1
        share = (i - begin) / (end - begin), within 0 and 1

    With beta = L / (2 pi theta^4), begin is 2 r, which is behind the end. For every pair, whose i
    is below r / 2, both differences are then negative, and the share is
    (2 r - i) / (2 r - (r - 1)), which is above 1: every frequency is divided.

    Args:
        schedule: The frequencies to write.
        spec: The RoPE of the source.
        family: The model family of the source.

    Raises:
        UnsupportedBake: For other frequencies than those of linear scaling, and for models whose
            linear scaling every runtime has.
    """
    # refuse all but linear scaling, for models that no other encoding writes for these runtimes
    form = schedule.form
    target = "the ramp encoding"
    if not isinstance(form, InterpolatedForm) or form.factor <= 1:
        raise UnsupportedBake(
            "this frequency vector", target, "it holds linear scaling only", OTHERWISE
        )
    if not spec.mla and not spec.mrope_section:
        why = "it is for models with M-RoPE or latent attention"
        raise UnsupportedBake(f"the RoPE of {family.name}", target, why, OTHERWISE)
    if "yarn" not in family.writing.types:
        why = "its class does not support it"
        raise UnsupportedBake("rope_type yarn", family.name, why, OTHERWISE)
    if abs(schedule.attention_factor - 1) > SAME_FACTOR or schedule.softmax_scale != 1:
        raise UnsupportedBake("an attention factor", target, "it holds 1 only", OTHERWISE)

    # servers make a table of the original context times the factor (yarn.py of both)
    original = schedule.original_context
    if original * form.factor < schedule.context:
        why = f"tables of YaRN end at {original:,} tokens times the factor {form.factor:g}"
        raise UnsupportedBake(f"{schedule.context:,} tokens", target, why, OTHERWISE)

    # the beta of the docstring; rounded down to a power of ten, it moves the begin further still
    exact_beta = original / (2 * math.pi * form.theta**BEYOND_THE_HEAD)
    beta = 10.0 ** math.floor(math.log10(exact_beta))
    rope: JsonObject = {
        "rope_type": "yarn",
        "factor": form.factor,
        "original_max_position_embeddings": original,
        "beta_fast": beta,
        "beta_slow": beta,
        "attention_factor": 1.0,
    }

    # readers that do not know attention_factor get 1 in their own way
    if spec.mla:
        # DeepSeek's classes read the pair and not attention_factor (deepseek_v2.py of both servers)
        rope["mscale"] = NEAR_ZERO
        rope["mscale_all_dim"] = NEAR_ZERO
    else:
        # SGLang multiplies its factor by this, and reads none of the other keys for M-RoPE
        # (sglang/srt/layers/rotary_embedding/yarn.py, 0.5.23)
        rope["attn_factor"] = 1 / temperature_attention_factor(form.factor)
    return RopeSetting(rope, form.theta, schedule.context)
