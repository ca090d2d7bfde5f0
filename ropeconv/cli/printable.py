"""Text as a terminal may have it: without control characters and secrets, whatever a name or an answer holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from ..secrets import redacted

PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
"""The user and password of a URL."""
TRAILING = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")
"""Blanks and codes of colours at the end of a line."""
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


def trimmed(line: str) -> str:
    """A line without the blanks at its end, also those between the codes of colours."""
    return TRAILING.sub(lambda found: found[0].replace(" ", ""), line)


@contextmanager
def trimmed_stdout() -> Iterator[None]:
    """While it is entered, what is printed on stdout has no blanks at the ends of its lines."""
    stream = _Trimmed(sys.stdout)
    with redirect_stdout(stream):
        yield
    stream.end()


class _Trimmed:
    """A stream that holds back a line until it is whole. All but that is the stream within."""

    def __init__(self, inner: TextIO) -> None:
        self.inner, self.line = inner, ""

    def write(self, text: str) -> int:
        *lines, self.line = (self.line + text).split("\n")
        self.inner.write("".join(f"{trimmed(line)}\n" for line in lines))
        return len(text)

    def end(self) -> None:
        self.inner.write(trimmed(self.line))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _without_secrets(text: str) -> str:
    return PASSWORD.sub("***@", redacted(text))
