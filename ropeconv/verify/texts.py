"""How the JSON of an output differs from that of its plan, in meaning: keys and values, not layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..errors import shown

WITHOUT_EFFECT = ("_name_or_path", "transformers_version", "_commit_hash")
"""Keys that no runtime computes with."""
OF_CODE = ("auto_map", "architectures", "model_type")
"""Keys that name the code of a model."""


def json_differences(found: str, wanted: str) -> list[tuple[str, str]] | None:
    """Keys in which two JSON objects differ, as (key, clause); None where one of them is no JSON object.

    found: the text of the file. wanted: that of the plan. Keys inside of others are joined by points.
    """
    try:
        ours, theirs = (json.loads(text, object_pairs_hook=_unique) for text in (found, wanted))
    except (ValueError, RecursionError):
        return None
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return None
    return list(_differences(ours, theirs, ""))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError for a key that is there twice, of which readers take one or the other."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _differences(ours: dict[str, Any], theirs: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key in dict.fromkeys((*theirs, *ours)):
        name = f"{prefix}{key}"
        if key not in ours:
            yield name, f"has no {name}, which is {shown(theirs[key])} there"
        elif key not in theirs:
            yield name, f"has {name} = {shown(ours[key])}, which is not there"
        elif isinstance(ours[key], dict) and isinstance(theirs[key], dict):
            yield from _differences(ours[key], theirs[key], f"{name}.")
        elif type(ours[key]) is not type(theirs[key]) or ours[key] != theirs[key]:
            yield name, f"has {name} = {shown(ours[key])}, where {shown(theirs[key])} belongs"
