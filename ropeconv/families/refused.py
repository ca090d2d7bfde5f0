"""Model types that have no family since they cannot be extended, and why: `refused.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import msgspec


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Model types that are refused for one reason. reason: what follows "model_type NAME" in the message."""

    reason: str
    model_types: tuple[str, ...]


@cache
def refused() -> dict[str, str]:
    """Why each model type is refused that no family has, by its name."""
    text = (files("ropeconv.families") / "refused.toml").read_text("utf-8")
    groups = msgspec.convert(tomllib.loads(text)["refused"], tuple[Refused, ...])
    return {model_type: group.reason for group in groups for model_type in group.model_types}
