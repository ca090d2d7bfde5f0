"""Numbers of tokens as users write them (131072, 128k, 1M), and scale factors, which may be written
as a length.

A factor and a length have no number in common: a factor is at most 1,000, and a whole number from
1,024 on is a length.
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
"""A scale factor, as a number (4.0) or as the text of the length that it reaches ("128k",
"100000").
"""

LARGEST_FACTOR = 1000
"""The largest number that is a factor where a length could stand too."""

SMALLEST_LENGTH = 1024
"""The smallest whole number without a suffix that is a length where a factor could stand too."""

BORDER = (
    f"a factor is at most {LARGEST_FACTOR:,}, and a whole number from {SMALLEST_LENGTH:,} on is a"
    " length in tokens"
)


def parse_tokens(text: str) -> int:
    """`"131072"`, `"128k"` (1k = 1024) or `"1M"` as a number of tokens; 65k, 131k, 262k, ... are
    2^16, 2^17, 2^18, ...

    Raises:
        RecipeError: For anything else.
    """
    if text.strip().lower() in SHORT:
        return SHORT[text.strip().lower()]
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
    """A number of tokens as `parse_tokens` reads it, the shortest way: 131072 as `"128k"`, 1048576
    as `"1M"`.
    """
    for unit, size in (("M", UNITS["m"]), ("k", UNITS["k"])):
        if tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)


def factor_text(tokens: int) -> str:
    """A scale factor that reaches a number of tokens, as a length: 100000 as `"100000"`, 300 as
    `"1k"`.
    """
    return format_tokens(max(tokens, SMALLEST_LENGTH))


def format_factor(factor: float) -> str:
    """A factor as people write it, for sentences: 4, 3.052, 10.67. Commands and files need the
    exact number.
    """
    return f"{factor:,.0f}" if factor >= 1000 else f"{factor:.4g}"


def is_length(factor: object) -> bool:
    """Whether a scale factor is the text of a length: digits with a suffix, as in 128k, or a number
    from 1,024 on.
    """
    match = re.fullmatch(r"0*([1-9]\d{0,9})([kM]?)", factor) if isinstance(factor, str) else None
    if match is None:
        return False
    tokens = int(match[1]) * UNITS[match[2].lower()]
    return tokens <= MOST_TOKENS and (match[2] != "" or tokens >= SMALLEST_LENGTH)


def normal_factor(factor: object) -> object:
    """A whole number from 1,024 on, of type int or as its digits, as the text of that length; else
    the same object.

    A float stays a factor: it is computed, as a length over a trained one.
    """
    digits = isinstance(factor, str) and re.fullmatch(r"\d{4,12}", factor) is not None
    whole = isinstance(factor, int) and not isinstance(factor, bool)
    if not (digits or whole):
        return factor
    tokens = int(factor)  # type: ignore[call-overload]
    return format_tokens(tokens) if SMALLEST_LENGTH <= tokens <= MOST_TOKENS else factor


def parse_factor(text: str, flag: str) -> Factor:
    """`"4"` as the factor 4.0, `"128k"` and `"100000"` as the length that a factor has to reach.

    Args:
        text: As on the command line.
        flag: of the method, for the message.

    Raises:
        RecipeError: For anything else.
    """
    length = re.fullmatch(r"0*([1-9]\d{0,11})([kKmM])", text.strip())
    if length:
        parse_tokens(text)
        return length[1] + {"k": "k", "m": "M"}[length[2].lower()]
    if re.fullmatch(r"\d{4,}", text.strip()):
        tokens = parse_tokens(text)
        if tokens >= SMALLEST_LENGTH:
            return format_tokens(tokens)
    try:
        value = float(text)
    except ValueError:
        raise RecipeError(
            f"{flag} takes a factor such as 4, or a length such as 128k (1k = 1024) or 100000, and"
            f" {shown(text)} is neither"
        ) from None
    if LARGEST_FACTOR < value < math.inf:
        meant = round(value) if SMALLEST_LENGTH <= value <= MOST_TOKENS else 128 * UNITS["k"]
        raise RecipeError(
            f"{flag} {text} is neither: {BORDER}; write {flag} {format_tokens(meant)}"
        )
    return value


def length_of(factor: Factor) -> int | None:
    """The length in tokens that a scale factor is written as; None for a number."""
    return parse_tokens(factor) if isinstance(factor, str) else None


def factor_over(factor: Factor, context: int, flag: str, kind: str = "trained") -> float:
    """A scale factor as a number: itself, or the length that it is written as over `context`.

    Args:
        factor: A number or a length.
        context: In tokens, which the factor multiplies.
        flag: of the method, and what: the name of that context, for the message.

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
    return reaching(length, context)


def reaching(length: int, context: int) -> float:
    """The factor whose product with a context is at least a length, as a runtime that rounds it
    down computes it.
    """
    factor = length / context
    return factor if factor * context >= length else math.nextafter(factor, math.inf)
