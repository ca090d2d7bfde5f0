"""Model types that have no family since they cannot be extended, and why: `refused.toml`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from ..formats.typed import package_data


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Model types that are refused for one reason. reason: what follows "model_type NAME" in the message."""

    reason: str
    model_types: tuple[str, ...]


class RefusedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema of refused.toml."""

    refused: tuple[Refused, ...]


@cache
def refused() -> dict[str, str]:
    """Why each model type is refused that no family has, by its name."""
    table = package_data(files("ropeconv.families") / "refused.toml", RefusedTable)
    return {model_type: group.reason for group in table.refused for model_type in group.model_types}
