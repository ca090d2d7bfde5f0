"""Numbers of tokens, as people write them."""

from __future__ import annotations

import re

from .errors import RecipeError

UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}


def parse_tokens(text: str) -> int:
    """`"131072"`, `"128k"` (1k = 1024) or `"1M"` as a number of tokens.

    Raises RecipeError for anything else.
    """
    match = re.fullmatch(r"(\d+)\s*([kKmM]?)", text.strip())
    if not match or int(match[1]) < 1:
        raise RecipeError(f"{text!r} is not a number of tokens; write it like 131072, 128k or 1M (1k = 1024)")
    return int(match[1]) * UNITS[match[2].lower()]
