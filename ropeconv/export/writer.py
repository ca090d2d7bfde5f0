"""Keys from gguf-py's writer, which has their names and types; the file itself is written by ropeconv."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ..formats.gguf import Value, string
from ..formats.gguf.values import ARRAY, FORMATS, STRING, array, strings


def values_of(fill: Callable[[Any], None]) -> dict[str, Value]:
    """The keys that `fill` adds to a gguf.GGUFWriter, without the architecture that every writer starts with."""
    import gguf

    writer = gguf.GGUFWriter(None, "llama")
    fill(writer)
    found = {key: _value(entry) for shard in writer.kv_data for key, entry in shard.items()}
    found.pop("general.architecture", None)
    return found


def _value(entry: Any) -> Value:
    import gguf

    kind, value = int(entry.type), entry.value
    if kind == STRING:
        return string(value)
    if kind != ARRAY:
        return Value(kind, struct.pack("<" + FORMATS[kind], value))
    element = int(entry.sub_type if entry.sub_type is not None else gguf.GGUFValueType.get_type(value[0]))
    if element == STRING:
        return strings([item if isinstance(item, bytes) else str(item).encode() for item in value])
    return array(element, value)
