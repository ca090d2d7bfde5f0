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

    # pairs that stand still by architecture have a large divisor in the source too
    zeros = count_zero(schedule.inv_freq)
    if zeros > spec.rotary_dim // 2 - spec.rotating_pairs:
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

    exact = factor_list(schedule.inv_freq, spec.rope_theta, spec.rotary_dim)
    divisors = written_divisors([float(value) for value in exact])
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
    if attention_factor != 1 or original != schedule.context or family.writing.longrope == "mscale":
        rope |= {"short_mscale": attention_factor, "long_mscale": attention_factor}
    return RopeSetting(
        rope=rope, theta=spec.rope_theta, context=schedule.context, top_original=original
    )


def factor_list(inv_freq: Vector, theta: float, rotary_dim: int) -> NDArray[np.float32]:
    """Return divisors f for which float32 `1 / (f * theta^x)` is nearest to `inv_freq`.

    The runtimes round three times: theta^x, the product, the quotient. From the float32 neighbours
    of the exact ratio, the one with the nearest result is chosen: usually at most 1 ulp off, where
    the ratio itself would be 2. Where theta^x is so near the middle of two floats that a runtime
    may round it to either, both are held within 2 ulp.

    Args:
        inv_freq: Radians per token, float64 [rotary_dim / 2]; the divisor of 0 is infinite.
        theta: The base.
        rotary_dim: Dimensions of a head that rotate.

    Returns:
        The divisors, float32 [rotary_dim / 2].
    """
    shares = np.arange(0, rotary_dim, 2).astype(np.float32) / np.float32(rotary_dim)
    exponent = shares.astype(np.float64)
    divisors = np.full(len(inv_freq), np.inf, dtype=np.float32)
    rotates = inv_freq > 0
    inv_freq = inv_freq[rotates]

    # theta^x as a float32, and the neighbour to which a runtime may round it
    exact = np.float64(np.float32(theta)) ** exponent[rotates]
    power = exact.astype(np.float32)
    other = np.nextafter(power, np.where(exact > power, np.float32(np.inf), np.float32(0)))
    gap = np.abs(other.astype(np.float64) - power)
    doubtful = np.abs(exact - power) > (0.5 - DOUBT) * gap

    # the neighbours of the exact ratio, which have consecutive bit patterns
    start = (1.0 / (exact * inv_freq)).astype(np.float32)
    steps = np.arange(-NEIGHBOURS, NEIGHBOURS + 1)[:, None]
    candidates = (start.view(np.int32) + steps).astype(np.int32).view(np.float32)

    # the least error at worst, then the least usual one, then the nearest neighbour
    miss = _miss(candidates * power, inv_freq)
    other_miss = _miss(candidates * other, inv_freq)
    worst = np.where(doubtful, np.maximum(miss, other_miss), miss)
    best = np.argmin(100 * worst + 10 * miss + np.abs(steps), axis=0)
    divisors[rotates] = candidates[best, np.arange(len(inv_freq))]
    return divisors


def _miss(divisor: NDArray[np.float32], expected: Vector) -> NDArray[np.int64]:
    """Distance of float32 `1 / divisor` from `expected` in ulp, int64 in the shape of `divisor`."""
    result = (np.float32(1.0) / divisor).view(np.int32).astype(np.int64)
    return np.abs(result - expected.astype(np.float32).view(np.int32))
