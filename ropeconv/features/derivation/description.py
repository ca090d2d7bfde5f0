"""The file of a family as text, as `ropeconv/models/data` and the folders of users have it."""

import json
from typing import Any

import msgspec

from ropeconv.models.family import Family
from ropeconv.models.registry import OWN
from ropeconv.version import __version__


def describe_in_toml(family: Family) -> str:
    """Return the file of a derived family, with what could not be found as comments."""
    comments = []
    if family.derived:
        comments.append(
            f"# ropeconv {__version__} derived this from {family.derived}, by running it."
        )
    for fact in family.not_derived:
        comments.append(f"# Not found: {fact}.")
    head = "\n".join(comments)
    return f"{head}\n\n{render(stated(family))}" if head else render(stated(family))


def stated(family: Family) -> dict[str, Any]:
    """Return the fields of a family that differ from their defaults, without those of ropeconv."""
    fields = _stated(family)
    return {key: value for key, value in fields.items() if key not in OWN}


def _stated(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct that differ from their defaults, as JSON-ready data.

    A struct inside it is described in the same way, and left out where it has only defaults.
    """
    found: dict[str, Any] = {}
    for item in msgspec.structs.fields(type(struct)):
        value = getattr(struct, item.name)
        default = item.default
        if default is msgspec.NODEFAULT and item.default_factory is not msgspec.NODEFAULT:
            default = item.default_factory()
        if value is None or value == default:
            continue
        if isinstance(value, msgspec.Struct):
            inside = _stated(value)
            if inside:
                found[item.name] = inside
            continue
        found[item.name] = msgspec.to_builtins(value)
    return found


def render(fields: dict[str, Any]) -> str:
    """Return the fields of a family's file as text: plain ones first, then a table for each group.

    Args:
        fields: By name, as JSON-ready data.
    """
    plain = {key: value for key, value in fields.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in fields.items() if isinstance(value, dict)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, dict):
        items = [f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()]
        return "{ " + ", ".join(items) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
