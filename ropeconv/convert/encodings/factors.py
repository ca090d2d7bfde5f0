"""Encoding `factors`: any frequency vector as `longrope` with equal lists ("P-form").

With short_factor == long_factor the length at which a runtime switches between them does not
matter, and with original_max_position_embeddings == max_position_embeddings and factor 1 every
reader derives the attention factor 1.
"""

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedBake
from ...formats.jsontext import JsonObject
from ...models.family import Family
from ...rope.forms import Vector, count_zero, written_divisors
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ..config_edit import RopeSetting
from ..encoding import config_encoding, original_for

NEIGHBOURS = 4
"""How many float32 neighbours of a ratio are tried on each side."""
DOUBT = 0.1
"""Doubt about the rounding of a power, in ulp: vectorised powf is good to about 0.6 ulp."""


@config_encoding("factors", order=2, max_ulp=2)
def factors(schedule: Schedule, spec: RopeSpec, family: Family) -> RopeSetting:
    """Write the schedule as two equal factor lists over the base of the source.

    Args:
        schedule: The frequencies and the attention factor to write.
        spec: The RoPE of the source.
        family: The model family of the source.

    Raises:
        UnsupportedBake: For a schedule with two lists or a softmax scale, pairs that do not rotate,
            and a family without longrope.
    """
    target = "the factors encoding"
    otherwise = "use --encoding native"
    if "longrope" not in family.writing.types:
        raise UnsupportedBake(
            "longrope factors", family.name, "its class does not support them", otherwise
        )
    if schedule.short_inv_freq is not None:
        raise UnsupportedBake("a pair of factor lists", target, "it holds one list", otherwise)

    # a frequency of 0 is a pair of dimensions that does not rotate; those that stand still by
    # architecture have a large divisor in the source too
    zeros = count_zero(schedule.inv_freq)
    still_by_architecture = spec.rotary_dim // 2 - spec.rotating_pairs
    if zeros > still_by_architecture:
        be = "is" if zeros == 1 else "are"
        raise UnsupportedBake(
            f"{zeros} of {len(schedule.inv_freq)} frequencies that {be} 0",
            target,
            "their divisors would be infinite, and JSON has no infinity",
            "use --encoding buffers, or --to gguf, which carry frequencies that are 0",
        )
    if schedule.softmax_scale != 1:
        scale = f"a softmax scale of {schedule.softmax_scale:g}"
        raise UnsupportedBake(scale, target, "only yarn carries mscale_all_dim", otherwise)

    nearest = factor_list(schedule.inv_freq, spec.rope_theta, spec.rotary_dim)
    divisors = written_divisors([float(divisor) for divisor in nearest])
    attention_factor = float(schedule.attention_factor)
    rope: JsonObject = {"rope_type": "longrope", "short_factor": divisors, "long_factor": divisors}

    # classes that derive the attention factor from two lengths get lengths that give it
    if family.writing.longrope == "original":
        context, original, notes = original_for(schedule.context, attention_factor)
        return RopeSetting(
            rope=rope, theta=spec.rope_theta, context=context, top_original=original, notes=notes
        )

    # others get both lengths equal, where any reader derives 1, and the attention factor as a key
    original = spec.query_length if family.writing.pinned_original else schedule.context
    rope |= {
        "factor": 1.0,
        "attention_factor": attention_factor,
        "original_max_position_embeddings": original,
    }
    # vLLM has its own names for it, which it needs where it would not derive 1
    derives_1 = attention_factor == 1 and original == schedule.context
    if not derives_1 or family.writing.longrope == "mscale":
        rope["short_mscale"] = attention_factor
        rope["long_mscale"] = attention_factor
    return RopeSetting(
        rope=rope, theta=spec.rope_theta, context=schedule.context, top_original=original
    )


def factor_list(inv_freq: Vector, theta: float, rotary_dim: int) -> NDArray[np.float32]:
    """Return divisors f for which float32 `1 / (f * theta^x)` is nearest to `inv_freq`.

    x is `2i / rotary_dim` for pair i. The runtimes round three times: theta^x, the product, and the
    quotient. So the exact ratio, rounded to float32, may give a frequency that is 2 ulp off. One of
    its float32 neighbours is usually at most 1 ulp off, and is chosen instead. Where theta^x is so
    near the middle of two floats that a runtime may round it to either, the frequency must be
    within 2 ulp for both.

    Args:
        inv_freq: Radians per token, float64 [rotary_dim / 2]; the divisor of 0 is infinite.
        theta: The base.
        rotary_dim: Dimensions of a head that rotate.

    Returns:
        The divisors, float32 [rotary_dim / 2].
    """
    divisors = np.full(len(inv_freq), np.inf, dtype=np.float32)
    rotates = inv_freq > 0
    wanted = inv_freq[rotates]

    # theta^x as a float32, and the neighbour to which a runtime may round it
    exponents = np.arange(0, rotary_dim, 2).astype(np.float32) / np.float32(rotary_dim)
    exact_power = np.float64(np.float32(theta)) ** exponents.astype(np.float64)[rotates]
    power = exact_power.astype(np.float32)
    towards = np.where(exact_power > power, np.float32(np.inf), np.float32(0))
    other_power = np.nextafter(power, towards)
    gap = np.abs(other_power.astype(np.float64) - power)
    may_round_to_other = np.abs(exact_power - power) > (0.5 - DOUBT) * gap

    # the float32 neighbours of the exact ratio, which have consecutive bit patterns:
    # [2 NEIGHBOURS + 1, pairs]
    ratio = (1.0 / (exact_power * wanted)).astype(np.float32)
    steps = np.arange(-NEIGHBOURS, NEIGHBOURS + 1)[:, None]
    candidates = (ratio.view(np.int32) + steps).astype(np.int32).view(np.float32)

    # choose by the error at worst, then by the usual error, then by the distance from the ratio.
    # One number orders all three, since errors of good candidates and steps are below 10.
    error = _miss(candidates * power, wanted)
    other_error = _miss(candidates * other_power, wanted)
    worst_error = np.where(may_round_to_other, np.maximum(error, other_error), error)
    rank = 100 * worst_error + 10 * error + np.abs(steps)
    best = np.argmin(rank, axis=0)
    divisors[rotates] = candidates[best, np.arange(len(wanted))]
    return divisors


def _miss(divisor: NDArray[np.float32], expected: Vector) -> NDArray[np.int64]:
    """Distance of float32 `1 / divisor` from `expected` in ulp, int64 in the shape of `divisor`."""
    result = (np.float32(1.0) / divisor).view(np.int32).astype(np.int64)
    return np.abs(result - expected.astype(np.float32).view(np.int32))
