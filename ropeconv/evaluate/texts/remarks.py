"""Texts that measure little: repeated, encoded or binary ones."""

from __future__ import annotations

import re
import zlib

from ...errors import BadSource

SEEN = 1 << 20
"""Characters that are looked at."""
REPETITIVE = 0.12
"""Size by zlib at which a text is taken to repeat itself; prose has 0.35 to 0.45, source code 0.25."""
ENCODED = re.compile(r"[A-Za-z0-9+/=_-]{60,}")
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
LEAST = 2000
"""Characters below which nothing is said."""


def remark(name: str, text: str) -> str:
    """What to know of the numbers that a text gives, in a sentence; empty for an ordinary text.

    name: of the text. Raises BadSource for a text with many control characters, which is no text.
    """
    part = text[:SEEN]
    if len(CONTROL.findall(part)) > len(part) / 100:
        raise BadSource(f"{name} is binary, and no text; give another --text")
    if len(part) < LEAST:
        return ""
    if sum(map(len, ENCODED.findall(part))) > len(part) / 2:
        return f"{name} looks encoded, as in base64 or hexadecimal, so its losses say nothing of language."
    data = part.encode("utf-8", "surrogatepass")
    ratio = len(zlib.compress(data)) / len(data)
    if ratio < REPETITIVE:
        return (
            f"{name} repeats itself (zlib makes {100 * ratio:.0f} % of it), so its tokens can be copied from nearby, "
            "and losses beyond the trained context look better than on other texts."
        )
    return ""
