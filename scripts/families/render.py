"""A draft as TOML, in the order of the files in `families/data`."""

import json
from typing import Any


def render(draft: dict[str, Any]) -> str:
    """The text of a family's file: plain fields first, then a table for each group. draft: from
    `draft`.
    """
    plain = {key: value for key, value in draft.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in draft.items() if isinstance(value, dict)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
