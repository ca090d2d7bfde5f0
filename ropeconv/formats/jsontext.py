"""Reads and writes JSON files so that key order, indentation and unknown keys stay."""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import BadSource

LONGEST = 8 << 20
"""Characters that are read; as objects they may take 50 times as many bytes. Published configs have up to a million."""
DEEPEST = 64
"""Levels of lists and objects; published files have up to ten, and Python's own recursion ends at 1,000."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, name: str, longest: int = LONGEST) -> dict[str, Any]:
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
    if SURROGATE.search(text) or not text.isascii():
        _check_unicode(data, name)
    return data


def _check_unicode(data: Any, name: str) -> None:
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as problem:
        half = ascii(problem.object[problem.start])
        raise BadSource(f"{name} holds {half}, half of a character; fix it or download it again") from None


def _depth(data: Any) -> int:
    """Levels of lists and objects, counted up to one more than `DEEPEST`."""
    depth, level = 0, [data]
    while level and depth <= DEEPEST:
        level = [item for item in level if isinstance(item, (dict, list))]
        depth += bool(level)
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def dump(data: dict[str, Any], like: str = "") -> str:
    """An object as JSON text that ends in a newline. like: a text whose indentation is taken, else 2 spaces."""
    found = re.search(r'^\{\r?\n([ \t]+)"', like)
    indent = found[1] if found else "  "
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"
