"""Read and write JSON files without changing key order, indentation or unknown keys."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..errors import BadSource

JsonObject = dict[str, Any]
LONGEST = 8 << 20
"""Characters of a text; as objects they may take 50 times as many bytes. Published configs have up
to a million.
"""
DEEPEST = 64
"""Levels of lists and objects; published files have up to ten, and Python's own recursion ends at
1,000.
"""
LONGEST_STRING = 1 << 20
"""Bytes of a string in a text that is read in blocks; published tokenizers have some thousand."""
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]:]|-?\d[\d.eE+-]*', re.DOTALL)
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, name: str, longest: int = LONGEST) -> JsonObject:
    """Return the JSON object in a text of at most `longest` characters.

    Args:
        name: of the file, for messages.

    Raises:
        BadSource: Where the text is not a JSON object, not Unicode, too long or too deep.
    """
    data = loads(text, name, longest)
    if not isinstance(data, dict):
        raise BadSource(f"{name} is not a JSON object; fix it or download it again")
    return data


def loads(text: str, name: str, longest: int = LONGEST) -> Any:
    """Like `parse`, for any JSON value."""
    if len(text) > longest:
        raise BadSource(
            f"{name} has {len(text):,} characters, and the limit is {longest:,}; shorten it"
        )
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadSource(
            f"{name} is not valid JSON ({problem}); fix it or download it again"
        ) from None
    depth = 0
    level = [data]
    while level and depth <= DEEPEST:
        level = [item for item in level if isinstance(item, (dict, list))]
        depth += bool(level)
        level = [
            inner for item in level for inner in (item.values() if isinstance(item, dict) else item)
        ]
    if depth > DEEPEST:
        raise BadSource(
            f"{name} has more than {DEEPEST} levels of lists and objects; flatten it or download it"
            " again"
        )
    try:
        if SURROGATE.search(text) or not text.isascii():
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as problem:
        half = ascii(problem.object[problem.start])
        raise BadSource(
            f"{name} has {half}, half of a character; fix it or download it again"
        ) from None
    return data


def dump(data: JsonObject, like: str = "") -> str:
    """Return an object as JSON text that ends in a newline, with the indentation of the text
    `like`, else 2 spaces.
    """
    match = re.search(r'^\{\r?\n([ \t]+)"', like)
    indent = match[1] if match else "  "
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Number:
    """A number in a JSON text."""

    path: tuple[str, ...]
    """The keys that lead to it."""

    value: float
    start: int
    """Its place in bytes."""

    stop: int
    """Its place in bytes."""


def numbers(
    blocks: Iterable[bytes], name: str, outer: Collection[str], first: bool = False
) -> Iterator[Number]:
    """Yield the numbers under some keys of a JSON object, in bounded memory; the JSON is not
    validated.

    Args:
        blocks: The text in pieces.
        outer: Keys of the outermost object, whose numbers are yielded, except those in lists.
        first: Stop after the first value of each of these keys.

    Raises:
        BadSource: For a string that is too long.
    """
    keys = list[str | None]()  # of the open levels, None for a list
    string = b""
    missing = set(outer)
    for start, token in _tokens(blocks, name):
        begin = token[:1]
        if begin == b'"':
            string = token
        elif begin in b"{[":
            keys.append("" if begin == b"{" else None)
        elif begin in b"}]":
            keys = keys[:-1]
        elif begin == b":":
            if keys and keys[-1] is not None:
                if first and len(keys) == 1 and not missing:
                    return
                keys[-1] = _key(string) if len(keys) == 1 or keys[0] in outer else ""
                missing -= {keys[-1]} if len(keys) == 1 else set()
        elif keys and keys[0] in outer and None not in keys:
            with suppress(ValueError):
                yield Number(
                    tuple(key or "" for key in keys), float(token), start, start + len(token)
                )


def _tokens(blocks: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the tokens of a JSON text with their places, except those in levels beyond DEEPEST."""
    at, rest, depth = 0, b"", 0
    for block in chain(blocks, (None,)):
        data = rest + (block or b"")
        rest = data[-1:]  # a sign, whose digits come with the next block
        for token in TOKEN.finditer(data):
            if token.end() == len(data) and block is not None:
                rest = data[token.start() :]
                break
            depth += token[0] in (b"{", b"[")
            if depth <= DEEPEST:
                yield at + token.start(), token[0]
            depth = max(0, depth - (token[0] in (b"}", b"]")))
        if len(rest) > LONGEST_STRING:
            raise BadSource(
                f"{name} has a string of more than {LONGEST_STRING:,} bytes; fix it or download it"
                " again"
            )
        at += len(data) - len(rest)


def _key(string: bytes) -> str:
    if b"\\" not in string:
        return string[1:-1].decode(errors="replace")
    try:
        return str(json.loads(string))
    except ValueError:
        return ""
