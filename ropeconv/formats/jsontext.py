"""JSON as people keep it: key order, indentation and unknown keys survive."""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import BadSource


def parse(text: str, name: str) -> dict[str, Any]:
    """A JSON object. Raises BadSource when the text is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadSource(f"{name} is not valid JSON ({problem}); fix it or download it again") from None
    if not isinstance(data, dict):
        raise BadSource(f"{name} holds no JSON object; fix it or download it again")
    return data


def dump(data: dict[str, Any], like: str = "") -> str:
    """The object as JSON, indented as `like` is (2 spaces otherwise), ending in a newline."""
    found = re.search(r'^\{\r?\n([ \t]+)"', like)
    indent = found[1] if found else "  "
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"
