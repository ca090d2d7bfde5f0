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
    the path ("model", "a"). Numbers in lists are left out. The JSON is not validated.

    Args:
        blocks: The text in pieces.
        name: The name of the file, for messages.
        outer: The keys of the outermost object whose numbers are yielded.
        first: Whether to stop when the values of all these keys were read, and to leave the rest of
            the text unread.

    Raises:
        BadSource: For a string that is too long.
    """
    # Where the present token is: the keys that lead to it, with None for a list. In the example,
    # the number 1 is at ["model", "a"] and the number 2 at ["model", "b", None]. An object whose
    # first key has not come has "".
    open_keys = list[str | None]()
    last_string = b""
    missing = set(outer)  # keys of `outer` that have not come yet

    # the first character of a token tells whether it is a string, a bracket, a colon or a number
    for start, token in _tokens(blocks, name):
        begin = token[:1]
        if begin == b'"':  # a key if a colon follows, otherwise a value
            last_string = token
        elif begin == b"{":
            open_keys.append("")
        elif begin == b"[":
            open_keys.append(None)
        elif begin in b"}]":
            # leave the innermost object or list; a damaged text may have too many brackets, for
            # which pop() would fail
            open_keys = open_keys[:-1]

        elif begin == b":":  # the string before the colon is a key of the innermost object
            is_in_object = bool(open_keys) and open_keys[-1] is not None
            if not is_in_object:  # the text is not JSON
                continue
            is_outermost = len(open_keys) == 1
            if first and is_outermost and not missing:
                return  # this key follows the values of all keys in `outer`
            # decoding takes time, so keys whose numbers are not yielded are left as ""
            is_needed = is_outermost or open_keys[0] in outer
            key = _key(last_string) if is_needed else ""
            open_keys[-1] = key
            if is_outermost:
                missing.discard(key)

        else:  # a number
            is_below_outer = bool(open_keys) and open_keys[0] in outer
            is_in_list = None in open_keys
            if not is_below_outer or is_in_list:
                continue
            path = tuple(key for key in open_keys if key is not None)
            with suppress(ValueError):  # such as 1-2, which the pattern accepts
                yield Number(path=path, value=float(token), start=start, stop=start + len(token))


def _tokens(blocks: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the tokens of a JSON text with their places, except those in levels beyond DEEPEST.

    The blocks b'{"a": 12' and b'3}' give (0, b"{"), (1, b'"a"'), (4, b":"), (6, b"123"), (9, b"}").

    Args:
        blocks: The text in pieces, which may end within a token.
        name: The name of the file, for messages.
    """
    start_of_data = 0  # its place in the text
    unfinished = b""  # the end of the last block, which is read again together with the next one
    depth = 0  # how many objects and lists are open

    end_of_text = (None,)  # a block of its own, with which the last token is complete
    for block in chain(blocks, end_of_text):
        is_end_of_text = block is None
        data = unfinished + (block or b"")
        # A token at the end of a block may continue in the next one, and is left for that. So is a
        # last byte that is not a token yet: it may be a sign, whose digits follow.
        unfinished = data[-1:]
        for match in TOKEN.finditer(data):
            token = match[0]
            may_continue = match.end() == len(data) and not is_end_of_text
            if may_continue:
                unfinished = data[match.start() :]
                break
            if token in (b"{", b"["):
                depth += 1
            if depth <= DEEPEST:
                yield start_of_data + match.start(), token
            if token in (b"}", b"]"):
                depth = max(0, depth - 1)
        if len(unfinished) > LONGEST_STRING:
            raise BadSource(
                f"{name} has a string of more than {LONGEST_STRING:,} bytes; fix it or download it"
                " again"
            )
        start_of_data += len(data) - len(unfinished)


def _key(string: bytes) -> str:
    """The text of a string token; empty where it is not valid."""
    if b"\\" not in string:
        return string[1:-1].decode(errors="replace")
    try:
        return str(json.loads(string))
    except ValueError:
        return ""
