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
"""Fields of the file that the draft must find too, where it has that table."""


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
    """Return how a draft differs from the file of its family, a sentence for each field.

    Such as "keys.theta is ['rope_theta'], and the draft has ['rotary_emb_base']".

    Args:
        family: The family, as its file says.
        facts: The draft, as tables with fields.
    """
    tables_of_file = msgspec.to_builtins(family)
    wrong = []
    for table, drafted in facts.items():
        if table in WRITTEN:
            continue
        of_file = tables_of_file[table]
        if not isinstance(drafted, dict):  # a field without a table
            if of_file != drafted:
                wrong.append(f"{table} is {of_file}, and the draft has {drafted}")
            continue
        for key, value in drafted.items():
            if _is_only_in_draft(table, key, of_file):
                continue
            stated = of_file[key]
            if key == "scaling" and stated:
                stated = scaling(stated)
                value = scaling(value)
            if not _is_same(key, stated, value):
                wrong.append(f"{table}.{key} is {stated}, and the draft has {value}")

    # what the file has and the draft lacks
    for table, keys in REQUIRED.items():
        if table not in facts:
            continue
        for key in keys:
            stated = tables_of_file[table][key]
            if stated and not facts[table].get(key):
                wrong.append(f"{table}.{key} is {stated}, and the draft has none")
    return wrong


def _is_only_in_draft(table: str, key: str, of_file: dict[str, Any]) -> bool:
    """Whether a file says nothing about a field of its draft, or says it by another field.

    Args:
        table: The name of the table.
        key: The field.
        of_file: The table in the file.
    """
    if key == "partial":  # the other keys of the share
        return True
    # the first layer of an interval in place of the last
    if of_file.get("leading") and key in ("last", "rest"):
        return True
    # every published config states it
    return table == "defaults" and key in SIZES and of_file[key] is None


def _is_same(key: str, stated: Any, drafted: Any) -> bool:
    """Whether a field of a file says the same as that of a draft, which may have fewer names."""
    if key == "types":
        return bool(drafted.items() <= stated.items())
    if not isinstance(drafted, list):
        return bool(stated == drafted)
    if key in ANY_OF:
        return set(drafted) <= set(stated)
    return list(stated) == list(drafted)
