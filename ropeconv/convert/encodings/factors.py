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
    """Write RoPE frequencies as the type "longrope", with the same factors for all input lengths.

    LongRoPE divides the frequencies of the base by a list of factors. It has one list for short and
    one for long inputs; here both are equal.

    Args:
        schedule: The frequencies and the attention factor to write.
        spec: The RoPE of the source.
        family: The model family of the source.

    Raises:
        UnsupportedBake: For a schedule with two lists or a softmax scale, pairs that do not rotate,
            and a family without longrope.
    """
    _refuse_unwritable(schedule, spec, family)
    nearest = factor_list(schedule.inv_freq, spec.rope_theta, spec.rotary_dim)
    divisors = written_divisors([float(divisor) for divisor in nearest])
    attention_factor = float(schedule.attention_factor)
    rope: JsonObject = {"rope_type": "longrope", "short_factor": divisors, "long_factor": divisors}

    # Phi-3: the class has no key for the attention factor. It computes the factor from
    # max_position_embeddings and original_max_position_embeddings, so it gets lengths for which the
    # result is right.
    computes_from_lengths = family.writing.longrope == "original"
    if computes_from_lengths:
        context, original_context, notes = original_for(schedule.context, attention_factor)
        return RopeSetting(
            rope=rope,
            theta=spec.rope_theta,
            context=context,
            top_original=original_context,
            notes=notes,
        )

    # Other classes read the key attention_factor. Runtimes that ignore this key compute the factor
    # from the lengths, and get 1 where both lengths are equal.
    original_context = schedule.context
    # Ministral 3: the length is also the unit of its query scaling, and must not change.
    if family.writing.pinned_original:
        original_context = spec.query_length
    rope |= {
        "factor": 1.0,
        "attention_factor": attention_factor,
        "original_max_position_embeddings": original_context,
    }

    # vLLM reads short_mscale and long_mscale, and without these keys computes the attention factor
    # from the lengths. Some classes ("mscale") fail without these keys.
    lengths_give_factor = attention_factor == 1 and original_context == schedule.context
    fails_without_mscale = family.writing.longrope == "mscale"
    if fails_without_mscale or not lengths_give_factor:
        rope["short_mscale"] = attention_factor
        rope["long_mscale"] = attention_factor
    return RopeSetting(
        rope=rope,
        theta=spec.rope_theta,
        context=schedule.context,
        top_original=original_context,
    )


def _refuse_unwritable(schedule: Schedule, spec: RopeSpec, family: Family) -> None:
    """Raise UnsupportedBake for what one factor list, in a class with longrope, cannot hold.

    Args:
        schedule: The frequencies and factors to write.
        spec: The RoPE of the source.
        family: The model family of the source.
    """
    target = "the factors encoding"
    otherwise = "use --encoding native"
    if "longrope" not in family.writing.types:
        raise UnsupportedBake(
            "longrope factors", family.name, "its class does not support them", otherwise
        )
    if schedule.short_inv_freq is not None:
        raise UnsupportedBake("a pair of factor lists", target, "it holds one list", otherwise)

    # A frequency of 0 is a pair of dimensions that does not rotate. Pairs that never rotate in the
    # architecture (p-RoPE) get a large divisor; others cannot be written.
    zeros = count_zero(schedule.inv_freq)
    never_rotating = spec.rotary_dim // 2 - spec.rotating_pairs
    if zeros > never_rotating:
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


def factor_list(inv_freq: Vector, theta: float, rotary_dim: int) -> NDArray[np.float32]:
    """Return the factor list with which runtimes compute `inv_freq` as exactly as float32 allows.

    For a factor f, a runtime computes `1 / (f * theta^x)` in float32, with x = `2i / rotary_dim`
    for pair i. It rounds three times: theta^x, the product, and the quotient. So the exact factor,
    rounded to float32, may give a frequency that is 2 ulp off. One of its float32 neighbours is
    usually at most 1 ulp off, and is chosen instead. Where theta^x is so near the middle of two
    floats that a runtime may round it to either, the frequency must be within 2 ulp for both.

    Args:
        inv_freq: Radians per token, float64 [rotary_dim / 2]; the divisor of 0 is infinite.
        theta: The base.
        rotary_dim: Dimensions of a head that rotate.

    Returns:
        The divisors, float32 [rotary_dim / 2].
    """
    divisors = np.full(len(inv_freq), np.inf, dtype=np.float32)
    rotates = inv_freq > 0
    wanted = inv_freq[rotates]  # frequencies [pairs]

    # theta^x exactly, as a float32, and as the other float32 to which a runtime may round it
    exponents = np.arange(0, rotary_dim, 2).astype(np.float32) / np.float32(rotary_dim)
    exact_power = np.float64(np.float32(theta)) ** exponents.astype(np.float64)[rotates]
    power = exact_power.astype(np.float32)
    other_power = _other_rounding(exact_power)

    # the candidates for each factor: the exact one, and its neighbours
    exact_factor = (1.0 / (exact_power * wanted)).astype(np.float32)
    steps = np.arange(-NEIGHBOURS, NEIGHBOURS + 1)[:, None]  # [candidates, 1]
    candidates = _float32_neighbours(exact_factor, steps)  # [candidates, pairs]

    # the error of the frequency that a runtime computes from each candidate, in whole ulp
    usual_error = _miss(candidates * power, wanted)
    worst_error = np.maximum(usual_error, _miss(candidates * other_power, wanted))

    # The best has the smallest error at worst, then the smallest usual error, then the fewest steps
    # from the exact factor. Errors are a few ulp, so a digit for each makes one number that orders
    # the candidates: 1 ulp at worst, 0 usually and 2 steps are 102.
    rank = 100 * worst_error + 10 * usual_error + np.abs(steps)
    best = np.argmin(rank, axis=0)
    every_pair = np.arange(len(wanted))
    divisors[rotates] = candidates[best, every_pair]
    return divisors


def _float32_neighbours(
    numbers: NDArray[np.float32], steps: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return for each positive number the float32 number that is some steps larger or smaller.

    The bits of the next larger float, read as an integer, are the next integer.

    Args:
        numbers: [n].
        steps: [m, 1].

    Returns:
        [m, n].
    """
    return (numbers.view(np.int32) + steps).astype(np.int32).view(np.float32)


def _other_rounding(exact: Vector) -> NDArray[np.float32]:
    """The other float32 to which a runtime may round each number, or the nearest where none is.

    powf is off by up to DOUBT, so near the middle of two floats either is possible.
    """
    nearest = exact.astype(np.float32)
    towards = np.where(exact > nearest, np.float32(np.inf), np.float32(0))
    second = np.nextafter(nearest, towards)
    gap = np.abs(second.astype(np.float64) - nearest)
    may_round_to_second = np.abs(exact - nearest) > (0.5 - DOUBT) * gap
    return np.where(may_round_to_second, second, nearest)


def _miss(divisor: NDArray[np.float32], expected: Vector) -> NDArray[np.int64]:
    """Distance of float32 `1 / divisor` from `expected` in ulp, int64 in the shape of `divisor`."""
    result = (np.float32(1.0) / divisor).view(np.int32).astype(np.int64)
    return np.abs(result - expected.astype(np.float32).view(np.int32))
