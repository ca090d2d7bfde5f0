"""Text as a terminal may have it: without control characters and secrets, whatever a name or an answer holds."""

from __future__ import annotations

import re

from ..secrets import redacted

PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
"""The user and password of a URL."""
UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and newline, those that change the direction of text, and halves of surrogate pairs.

https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing
"""


def printable(text: str) -> str:
    """The text with unsafe characters as escapes, `\\x1b` or `\\u202e`, and without tokens, keys and passwords."""
    return UNSAFE.sub(lambda found: repr(found[0])[1:-1], _without_secrets(text))


def printable_json(text: str) -> str:
    """A JSON document with unsafe characters as escapes of JSON, which leave it the same document."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", _without_secrets(text))


def _without_secrets(text: str) -> str:
    return PASSWORD.sub("***@", redacted(text))
