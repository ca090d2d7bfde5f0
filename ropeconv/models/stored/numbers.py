"""Numbers of few bits as float32, and bits packed into words."""

import numpy as np
from numpy.typing import NDArray

NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "U8": "u1",
    "I8": "i1",
    "I32": "<u4",
    "U32": "<u4",
    "I64": "<i8",
}
"""The types in which numpy reads stored tensors; words of 32 bits without a sign, to shift them."""


def _decode_e4m3() -> NDArray[np.float32]:
    """The numbers of F8_E4M3: 1 sign, 4 bits of exponent over 7, 3 of mantissa, and no infinity.

    Source: Micikevicius et al. 2022, "FP8 formats for deep learning", table 1.
    """
    codes = np.arange(256)
    exponent = codes >> 3 & 15
    mantissa = codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    subnormal = mantissa / 8 * 2.0**-6
    numbers = np.where(exponent > 0, normal, subnormal)
    numbers[codes & 127 == 127] = np.nan
    return np.where(codes < 128, numbers, -numbers).astype(np.float32)


def _decode_e5m2() -> NDArray[np.float32]:
    """The numbers of F8_E5M2, which are the upper halves of numbers in float16."""
    halves = np.arange(256, dtype=np.uint16) << 8
    return halves.view(np.float16).astype(np.float32)


def _decode_e8m0() -> NDArray[np.float32]:
    """The numbers of F8_E8M0, powers of two for scales: 2^(code - 127), and 255 is NaN."""
    numbers = 2.0 ** (np.arange(256) - 127.0)
    numbers[255] = np.nan
    return numbers.astype(np.float32)


EIGHT_BITS = {"F8_E4M3": _decode_e4m3(), "F8_E5M2": _decode_e5m2()}
"""The number of each byte of a weight, by its dtype in safetensors."""
POWERS = _decode_e8m0()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The numbers of 4 bits: 1 sign, 2 bits of exponent, 1 of mantissa (OCP Microscaling, 5.3.3)."""


def pairs(numbers: NDArray[np.float32], high_first: bool = False) -> NDArray[np.float32]:
    """Return the two numbers of each byte that has two codes of 4 bits, [256, 2].

    Args:
        numbers: The number of each of the 16 codes.
        high_first: Whether the first number is in the upper half of a byte.
    """
    codes = np.arange(256)
    low = numbers[codes & 15]
    high = numbers[codes >> 4]
    if high_first:
        return np.stack([high, low], axis=1)
    return np.stack([low, high], axis=1)


def unpack(words: NDArray[np.uint32], bits: int, count: int) -> NDArray[np.uint32]:
    """Return numbers that follow each other in words of 32 bits, the lowest bits first.

    Number i begins at bit `i * bits`, and may end in the next word.

    Args:
        words: The words, [words, n]: n sequences side by side.
        bits: The bits of a number.
        count: How many numbers each sequence has.

    Returns:
        uint32 [count, n].
    """
    lowest_bits = np.uint32((1 << bits) - 1)
    sequences = words.shape[1]
    if 32 % bits == 0:  # each word has the same places for its numbers: [words, numbers of a word]
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        numbers = words[:, None, :] >> shifts[None, :, None]
        numbers &= lowest_bits
        return numbers.reshape(-1, sequences)[:count]

    # the word in which each number begins, and the bit within it
    first_bit = np.arange(count) * bits
    word = first_bit // 32
    shift = (first_bit % 32).astype(np.uint32)[:, None]
    numbers = words[word] >> shift

    # the higher bits of a number that continues in the next word; the last number does not, so for
    # that the last word will do
    continues = shift + bits > 32
    next_word = np.minimum(word + 1, len(words) - 1)
    higher_bits = words[next_word] << (32 - shift) % 32
    numbers |= np.where(continues, higher_bits, np.uint32(0))
    numbers &= lowest_bits
    return numbers
