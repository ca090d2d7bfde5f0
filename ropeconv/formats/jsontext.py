"""Reads and writes JSON files so that key order, indentation and unknown keys stay."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..errors import BadSource

JsonObject = dict[str, Any]
"""A JSON object, whose values are whatever the document holds."""
LONGEST = 8 << 20
"""Characters that are read; as objects they may take 50 times as many bytes. Published configs have up to a million."""
DEEPEST = 64
"""Levels of lists and objects; published files have up to ten, and Python's own recursion ends at 1,000."""
LONGEST_STRING = 1 << 20
"""Bytes of a string in a text that is read in blocks; the longest in a published tokenizer.json has some thousand."""
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]:]|-?\d[\d.eE+-]*', re.DOTALL)
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, name: str, longest: int = LONGEST) -> JsonObject:
    """The JSON object in a text. name: of the file, for the message. longest: characters that are read.

    Raises BadSource where the text is not one, is not Unicode, or is too long or too deep to be read.
    """
    data = loads(text, name, longest)
    if not isinstance(data, dict):
        raise BadSource(f"{name} holds no JSON object; fix it or download it again")
    return data


def loads(text: str, name: str, longest: int = LONGEST) -> Any:
    """Like `parse`, for any JSON value."""
    if len(text) > longest:
        raise BadSource(f"{name} has {len(text):,} characters, and at most {longest:,} are read; shorten it")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadSource(f"{name} is not valid JSON ({problem}); fix it or download it again") from None
    if _depth(data) > DEEPEST:
        raise BadSource(f"{name} has more than {DEEPEST} levels of lists and objects; flatten it or download it again")
    try:
        if SURROGATE.search(text) or not text.isascii():
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as problem:
        half = ascii(problem.object[problem.start])
        raise BadSource(f"{name} holds {half}, half of a character; fix it or download it again") from None
    return data


def _depth(data: Any) -> int:
    """Levels of lists and objects, counted up to one more than `DEEPEST`."""
    depth, level = 0, [data]
    while level and depth <= DEEPEST:
        level = [item for item in level if isinstance(item, (dict, list))]
        depth += bool(level)
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def dump(data: JsonObject, like: str = "") -> str:
    """An object as JSON text that ends in a newline. like: a text whose indentation is taken, else 2 spaces."""
    found = re.search(r'^\{\r?\n([ \t]+)"', like)
    indent = found[1] if found else "  "
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Number:
    """A number in a JSON text. path: the keys that lead to it. value: rounded to float. start, stop: its bytes."""

    path: tuple[str, ...]
    value: float
    start: int
    stop: int


def numbers(blocks: Iterable[bytes], name: str, outer: Collection[str], first: bool = False) -> Iterator[Number]:
    """Yields the numbers under some keys of a JSON object, in bounded memory; whether it is valid is not checked.

    blocks: the text in pieces. name: of the file, for messages. outer: keys of the outermost object, under which
    numbers are wanted, except those in lists. first: read nothing after the first value of each of these keys. Raises
    BadSource for a string that is too long.
    """
    keys = list[str | None]()  # of the open levels, None for a list
    deeper, string, missing = 0, b"", set(outer)  # deeper: levels beyond DEEPEST
    for start, token in _tokens(blocks, name):
        begin = token[:1]
        if begin == b'"':
            string = token
        elif begin == b":":
            if keys and keys[-1] is not None and not deeper:
                if first and len(keys) == 1 and not missing:
                    return
                keys[-1] = _key(string) if len(keys) == 1 or keys[0] in outer else ""
                missing -= {keys[-1]} if len(keys) == 1 else set()
        elif begin in b"{[" and len(keys) == DEEPEST:
            deeper += 1
        elif begin in b"{[":
            keys.append("" if begin == b"{" else None)
        elif begin in b"}]" and deeper:
            deeper -= 1
        elif begin in b"}]":
            keys = keys[:-1]
        elif not deeper and keys and keys[0] in outer and None not in keys:
            with suppress(ValueError):
                yield Number(tuple(key or "" for key in keys), float(token), start, start + len(token))


def _tokens(blocks: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yields the tokens of a text in pieces, each with its place. name: of the file, for the message."""
    at, rest = 0, b""
    for block in chain(blocks, (None,)):
        data = rest + (block or b"")
        rest = data[-1:]  # a sign, whose digits come with the next block
        for token in TOKEN.finditer(data):
            if token.end() == len(data) and block is not None:
                rest = data[token.start() :]
                break
            yield at + token.start(), token[0]
        if len(rest) > LONGEST_STRING:
            raise BadSource(f"{name} has a string of more than {LONGEST_STRING:,} bytes; fix it or download it again")
        at += len(data) - len(rest)


def _key(string: bytes) -> str:
    """The key in a JSON string; empty where it is damaged."""
    if b"\\" not in string:
        return string[1:-1].decode(errors="replace")
    try:
        return str(json.loads(string))
    except ValueError:
        return ""
