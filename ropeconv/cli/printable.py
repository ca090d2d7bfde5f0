"""Text for a terminal: names in checkpoints are of other people, and may hold sequences that a terminal obeys."""

from __future__ import annotations

import re

OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, those that turn the direction of writing, and halves of characters."""


def printable(text: str) -> str:
    """A text with U+FFFD in place of every character that a terminal would obey."""
    return OBEYED.sub("\ufffd", text)
