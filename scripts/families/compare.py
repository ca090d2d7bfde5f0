"""Compares the draft of a family with what its file says."""

from typing import Any

import msgspec

from ropeconv.models.family import Family
from ropeconv.models.schema import ROPE

WRITTEN = ("name", "display_name", "model_types", "source")
"""Fields that a person writes."""
ANY_OF = (
    "layer",
    "input_norm",
    "hidden",
    "heads",
    "kv_heads",
    "layers",
    "context",
    "partial",
    "head_dim",
)
"""Lists of names of which the file may have more: those of other versions and of models around this
one.
"""
REQUIRED = {"weights": ("q", "k", "fused", "q_norm", "k_norm"), "window": ("key",)}
"""What the file says, and the draft has to find too where it has that table."""


SIZES = ("hidden", "heads", "kv_heads", "layers")
"""Defaults that a file has only where configs leave them out."""
NOT_IN_TABLE = ("type", "rope_theta", "partial_rotary_factor")
"""Keys of RoPE settings that a table of defaults needs not have: one of another schema, and what
others state.
"""


def scaling(rope: dict[str, Any]) -> dict[str, Any] | None:
    """The scaling in RoPE settings, as a table of defaults has it; None for the unscaled
    formula.
    """
    if rope.get("rope_type", "default") == "default":
        return None
    return {key: value for key, value in rope.items() if key in ROPE and key not in NOT_IN_TABLE}


def disagreements(family: Family, facts: dict[str, Any]) -> list[str]:
    """The fields in which a draft and the file of a family say different things, a sentence for
    each.

    family: from the file. facts: the draft.
    """
    fields = msgspec.to_builtins(family)
    pairs = [(key, fields[key], value) for key, value in facts.items() if key not in WRITTEN]
    wrong = []
    for table, ours, drafted in pairs:
        if not isinstance(drafted, dict):
            wrong += [] if ours == drafted else [f"{table} is {ours}, and the draft has {drafted}"]
            continue
        for key, value in drafted.items():
            if key == "partial" or (ours.get("leading") and key in ("last", "rest")):
                # the other keys of the share, and the first layer of an interval in place of the
                # last
                continue
            if table == "defaults" and key in SIZES and ours[key] is None:
                continue  # every published config states it
            mine = ours[key]
            if key == "scaling" and mine:
                mine = scaling(mine)
                value = scaling(value)
            alike = (
                set(value) <= set(mine)
                if isinstance(value, list) and key in ANY_OF
                else (list(mine) == list(value) if isinstance(value, list) else mine == value)
            )
            if key == "types":
                alike = value.items() <= mine.items()
            wrong += [] if alike else [f"{table}.{key} is {mine}, and the draft has {value}"]
    for table, keys in REQUIRED.items():
        absent = [
            key
            for key in keys
            if table in facts and fields[table][key] and not facts[table].get(key)
        ]
        wrong += [
            f"{table}.{key} is {fields[table][key]}, and the draft has none" for key in absent
        ]
    return wrong
