"""Reads and writes JSON files so that key order, indentation and unknown keys stay."""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import BadSource


def parse(text: str, name: str) -> dict[str, Any]:
    """The JSON object in a text. name: of the file, for the message. Raises BadSource where the text is not one."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadSource(f"{name} is not valid JSON ({problem}); fix it or download it again") from None
    if not isinstance(data, dict):
        raise BadSource(f"{name} holds no JSON object; fix it or download it again")
    return data


def dump(data: dict[str, Any], like: str = "") -> str:
    """An object as JSON text that ends in a newline. like: a text whose indentation is taken, else 2 spaces."""
    found = re.search(r'^\{\r?\n([ \t]+)"', like)
    indent = found[1] if found else "  "
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"
