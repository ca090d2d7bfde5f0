"""Numbers of tokens and scale factors as users write them (131072, 128k, 1M).

A scale factor may be written as a length. A factor and a length have no number in common: a factor
is at most 1,000, and a whole number from 1,024 on is a length.
"""

import math
import re

from .errors import RecipeError, shown

UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
SHORT = {
    "65k": 1 << 16,
    "131k": 1 << 17,
    "262k": 1 << 18,
    "524k": 1 << 19,
    "1048k": 1 << 20,
    "2097k": 1 << 21,
    "4194k": 1 << 22,
}

MOST_TOKENS = (1 << 31) - 1
"""The longest context: runtimes count positions in 32 bits."""

Factor = float | str
"""A scale factor: a number (4.0), or the text of the length that it reaches ("128k", "100000")."""

LARGEST_FACTOR = 1000
"""The largest number that is a factor where a length could stand too."""

SMALLEST_LENGTH = 1024
"""The smallest whole number without a suffix that is a length where a factor could stand too."""

RULE_OF_FACTORS_AND_LENGTHS = (
    f"a factor is at most {LARGEST_FACTOR:,}, and a whole number from {SMALLEST_LENGTH:,} on is a"
    " length in tokens"
)


def parse_tokens(text: str) -> int:
    """Return the tokens that `"131072"`, `"128k"` (1k = 1024) or `"1M"` stand for.

    65k, 131k, 262k, ... are 2^16, 2^17, 2^18, ..., as people round these powers.

    Raises:
        RecipeError: For anything else.
    """
    if text.strip().lower() in SHORT:
        return SHORT[text.strip().lower()]

    # at most twelve digits, which no context has: int() refuses thousands of them in its own words
    match = re.fullmatch(r"0*(\d{1,12})\s*([kKmM]?)", text.strip())
    if not match or int(match[1]) < 1:
        raise RecipeError(
            f"{shown(text)} is not a number of tokens; write it like 131072, 128k or 1M (1k = 1024)"
        )

    tokens = int(match[1]) * UNITS[match[2].lower()]
    if tokens > MOST_TOKENS:
        raise RecipeError(
            f"{shown(text)} is more than {MOST_TOKENS:,} tokens, the positions that runtimes can"
            " count"
        )
    return tokens


def format_tokens(tokens: int) -> str:
    """Write a number of tokens the shortest way that `parse_tokens` reads: 131072 as `"128k"`."""
    for unit, size in (("M", UNITS["m"]), ("k", UNITS["k"])):
        if tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)


def factor_text(tokens: int) -> str:
    """Write a scale factor as the length that it reaches: 100000 as `"100000"`, 300 as `"1k"`."""
    return format_tokens(max(tokens, SMALLEST_LENGTH))


def format_factor(factor: float) -> str:
    """Write a factor for sentences: 4, 3.052, 10.67. Commands and files need the exact number."""
    if factor >= 1000:
        return f"{factor:,.0f}"
    return f"{factor:.4g}"


def is_length(factor: object) -> bool:
    """Whether a scale factor is the text of a length: 128k, or a whole number from 1,024 on."""
    if not isinstance(factor, str):
        return False
    match = re.fullmatch(r"0*([1-9]\d{0,9})([kM]?)", factor)
    if match is None:
        return False

    digits, suffix = match.groups()
    tokens = int(digits) * UNITS[suffix.lower()]
    if tokens > MOST_TOKENS:
        return False
    return suffix != "" or tokens >= SMALLEST_LENGTH


def normal_factor(factor: object) -> object:
    """Write a factor that is meant as a length to reach, such as 131072, as its text, "128k".

    Nobody extends a context 1,024 times, so a whole number from 1,024 on (an int or its digits) is
    a length. Every other object is returned unchanged. A float stays a factor: it was computed, as
    a length over a trained one.
    """
    if isinstance(factor, int) and not isinstance(factor, bool):  # a bool is an int too
        tokens = factor
    elif isinstance(factor, str) and re.fullmatch(r"\d{4,12}", factor):
        tokens = int(factor)
    else:
        return factor

    if SMALLEST_LENGTH <= tokens <= MOST_TOKENS:
        return format_tokens(tokens)
    return factor


def parse_factor(text: str, flag: str) -> Factor:
    """Return the factor or the length that a user gives for a method, such as `--yarn 4`.

    "4" is the factor 4.0, a float. "128K" and "0128k" are the length "128k", and "131072" is too: a
    length is returned as a text.

    Args:
        text: As on the command line.
        flag: The flag of the method, for the message.

    Raises:
        RecipeError: For anything else.
    """
    # a length with a suffix, such as 128k
    suffixed = re.fullmatch(r"0*([1-9]\d{0,11})([kKmM])", text.strip())
    if suffixed:
        parse_tokens(text)  # refuses a length that is too long
        digits, unit = suffixed.groups()
        if unit in "kK":
            return f"{digits}k"
        return f"{digits}M"

    # a whole number that is too large for a factor, such as 100000, is a length
    if re.fullmatch(r"\d{4,}", text.strip()):
        tokens = parse_tokens(text)
        if tokens >= SMALLEST_LENGTH:
            return format_tokens(tokens)

    # a factor
    try:
        value = float(text)
    except ValueError:
        raise RecipeError(
            f"{flag} takes a factor such as 4, or a length such as 128k (1k = 1024) or 100000, and"
            f" {shown(text)} is neither"
        ) from None

    # A factor is at most 1,000. A larger number was probably meant as a length, which the message
    # suggests: 128k for 131072.0, and also for numbers that are not a length either.
    if LARGEST_FACTOR < value < math.inf:
        is_length = SMALLEST_LENGTH <= value <= MOST_TOKENS
        suggestion = format_tokens(round(value)) if is_length else "128k"
        raise RecipeError(
            f"{flag} {text} is neither: {RULE_OF_FACTORS_AND_LENGTHS}; write {flag} {suggestion}"
        )
    return value


def length_of(factor: Factor) -> int | None:
    """The length in tokens that a scale factor is written as; None for a number."""
    return parse_tokens(factor) if isinstance(factor, str) else None


def factor_over(factor: Factor, context: int, flag: str, kind: str = "trained") -> float:
    """Return a scale factor as a number: itself, or its length over a context.

    Args:
        factor: A number or a length.
        context: In tokens, which the factor multiplies.
        flag: The flag of the method, for the message.
        kind: The name of that context, for the message.

    Raises:
        RecipeError: For a length within the context.
    """
    length = length_of(factor)
    if length is None:
        return float(factor)
    if length <= context:
        raise RecipeError(
            f"{flag} {factor} is within the {kind} {context:,} tokens; give a longer length, such"
            f" as {flag} {factor_text(4 * context)}, or a factor, such as {flag} 4"
        )
    return factor_reaching(length, context)


def factor_reaching(length: int, context: int) -> float:
    """Return the factor whose product with a context, rounded down as runtimes do, is a length."""
    factor = length / context
    if factor * context >= length:
        return factor
    return math.nextafter(factor, math.inf)


def format_duration(seconds: float) -> str:
    """Return seconds for display: `"45 s"`, `"12 min"`, `"3.5 h"`."""
    if seconds < 1:
        return "1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
