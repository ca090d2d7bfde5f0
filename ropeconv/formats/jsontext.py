"""Read and write JSON files without changing key order, indentation or unknown keys.

`parse` reads an object, and `dump` writes one.
"""

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
"""The most characters of a text; published configs have up to a million.

As objects they may take 50 times as many bytes.
"""
DEEPEST = 64
"""The most levels of lists and objects; published files have up to ten.

Python's own recursion ends at 1,000.
"""
LONGEST_STRING = 1 << 20
"""Bytes of a string in a text that is read in blocks; published tokenizers have some thousand."""
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]:]|-?\d[\d.eE+-]*', re.DOTALL)
"""A string (up to the end of a block where it is not closed), a bracket, a colon, or a number."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, name: str, longest: int = LONGEST) -> JsonObject:
    """Return the JSON object in a text of at most `longest` characters.

    Args:
        text: The content of the file.
        name: The name of the file, for messages.
        longest: The most characters that are read.

    Raises:
        BadSource: Where the text is not a JSON object, not Unicode, too long or too deep.
    """
    data = loads(text, name, longest)
    if not isinstance(data, dict):
        raise BadSource(f"{name} is not a JSON object; fix it or download it again")
    return data


def loads(text: str, name: str, longest: int = LONGEST) -> Any:
    """Return the JSON value in a text of at most `longest` characters.

    Args:
        text: The content of the file.
        name: The name of the file, for messages.
        longest: The most characters that are read.

    Raises:
        BadSource: Where the text is not JSON, not Unicode, too long or too deep.
    """
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

    if _is_too_deep(data):
        raise BadSource(
            f"{name} has more than {DEEPEST} levels of lists and objects; flatten it or download it"
            " again"
        )

    # "\ud83d" without its other half is valid JSON and becomes a str that cannot be written as
    # UTF-8. An attempt to write it costs as much as parsing, so plain texts are spared it.
    may_have_halves = SURROGATE.search(text) is not None or not text.isascii()
    if not may_have_halves:
        return data
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as problem:
        half = ascii(problem.object[problem.start])
        raise BadSource(
            f"{name} has {half}, half of a character; fix it or download it again"
        ) from None
    return data


def _is_too_deep(data: Any) -> bool:
    """Whether a JSON value has more than DEEPEST levels of lists and objects."""
    # level by level, since a recursive function would itself go too deep
    level = [data]
    for _ in range(DEEPEST + 1):
        containers = [item for item in level if isinstance(item, (dict, list))]
        if not containers:
            return False
        level = []
        for item in containers:
            level += item.values() if isinstance(item, dict) else item
    return True


def dump(data: JsonObject, like: str = "") -> str:
    """Return an object as JSON text that ends in a newline.

    Args:
        data: The object.
        like: The text whose indentation it gets; without one that is 2 spaces.
    """
    indent = "  "
    match = re.search(r'^\{\r?\n([ \t]+)"', like)
    if match:
        indent = match[1]
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Number:
    """A number in a JSON text."""

    path: tuple[str, ...]
    """The keys that lead to it."""

    value: float
    start: int
    """The place of its first byte in the text."""

    stop: int
    """The place behind its last byte."""


def numbers(
    blocks: Iterable[bytes], name: str, outer: Collection[str], first: bool = False
) -> Iterator[Number]:
    """Yield the numbers under some keys of a JSON object, without reading all of it into memory.

    For `outer` = ("model",), the text {"model": {"a": 1, "b": [2]}, "c": 3} gives the number 1 with
    the path ("model", "a"). The JSON is not validated.

    Args:
        blocks: The text in pieces.
        name: The name of the file, for messages.
        outer: Keys of the outermost object, whose numbers are yielded, except those in lists.
        first: Stop after the first value of each of these keys.

    Raises:
        BadSource: For a string that is too long.
    """
    # For each object or list that is open, from the outermost one on: the present key of the object
    # ("" before its first key, and for keys that do not count), or None for a list. In the example
    # this is ["model", "b", None] at the number 2.
    levels = list[str | None]()
    last_string = b""  # a key or a value
    missing = set(outer)  # keys that have not come yet

    # a token is a string, a bracket, a colon, or a number, which its first character tells
    for start, token in _tokens(blocks, name):
        begin = token[:1]
        if begin == b'"':
            last_string = token
        elif begin == b"{":
            levels.append("")  # its first key follows
        elif begin == b"[":
            levels.append(None)
        elif begin in b"}]":
            levels = levels[:-1]  # not pop(), which fails on a text with too many brackets

        elif begin == b":":  # the string before it was a key
            is_in_object = bool(levels) and levels[-1] is not None
            if not is_in_object:  # the text is not JSON
                continue
            is_outermost = len(levels) == 1
            if first and is_outermost and not missing:
                return
            # only keys of the outermost object, and those below one of `outer`, are decoded
            key = ""
            if is_outermost or levels[0] in outer:
                key = _key(last_string)
            levels[-1] = key
            if is_outermost:
                missing.discard(key)

        else:  # a number
            is_below_outer = bool(levels) and levels[0] in outer
            is_in_list = None in levels
            if not is_below_outer or is_in_list:
                continue
            path = tuple(key for key in levels if key is not None)
            with suppress(ValueError):  # such as 1-2, which the pattern accepts
                yield Number(path=path, value=float(token), start=start, stop=start + len(token))


def _tokens(blocks: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the tokens of a JSON text with their places, except those in levels beyond DEEPEST.

    Args:
        blocks: The text in pieces, which may end within a token.
        name: The name of the file, for messages.
    """
    at = 0  # the place of `data` in the text
    rest = b""  # the end of the last block, which is read again together with the next one
    depth = 0  # how many objects and lists are open

    for block in chain(blocks, (None,)):  # None ends the text, so that its last token is complete
        is_end_of_text = block is None
        data = rest + (block or b"")
        # The token at the end of a block may go on in the next one, and is left for that. So is a
        # last byte that is not a token yet: it may be a sign, whose digits follow.
        rest = data[-1:]
        for match in TOKEN.finditer(data):
            token = match[0]
            is_at_end_of_block = match.end() == len(data)
            if is_at_end_of_block and not is_end_of_text:
                rest = data[match.start() :]
                break
            if token in (b"{", b"["):
                depth += 1
            if depth <= DEEPEST:
                yield at + match.start(), token
            if token in (b"}", b"]"):
                depth = max(0, depth - 1)
        if len(rest) > LONGEST_STRING:
            raise BadSource(
                f"{name} has a string of more than {LONGEST_STRING:,} bytes; fix it or download it"
                " again"
            )
        at += len(data) - len(rest)


def _key(string: bytes) -> str:
    """The text of a string token; empty where it is not valid."""
    if b"\\" not in string:
        return string[1:-1].decode(errors="replace")
    try:
        return str(json.loads(string))
    except ValueError:
        return ""
