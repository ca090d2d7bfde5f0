"""Parses numbers of tokens as users write them, such as 131072, 128k or 1M."""

from __future__ import annotations

import re

from .errors import RecipeError

UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
SHORT = {"65k": 1 << 16, "131k": 1 << 17, "262k": 1 << 18, "524k": 1 << 19, "1048k": 1 << 20, "2097k": 1 << 21,
         "4194k": 1 << 22}  # fmt: skip


def parse_tokens(text: str) -> int:
    """`"131072"`, `"128k"` (1k = 1024) or `"1M"` as a number of tokens; 65k, 131k, 262k, ... are 2^16, 2^17, 2^18, ...

    Raises RecipeError for anything else.
    """
    if text.strip().lower() in SHORT:
        return SHORT[text.strip().lower()]
    match = re.fullmatch(r"(\d+)\s*([kKmM]?)", text.strip())
    if not match or int(match[1]) < 1:
        raise RecipeError(f"{text!r} is not a number of tokens; write it like 131072, 128k or 1M (1k = 1024)")
    return int(match[1]) * UNITS[match[2].lower()]
