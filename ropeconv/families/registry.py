"""The families of the package, from `data/*.toml`, and those of the user."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from .family import Family
from .user import user_families


@cache
def packaged() -> tuple[Family, ...]:
    """The families of the package, sorted by name."""
    data = files("ropeconv.families") / "data"
    found = [
        msgspec.convert(tomllib.loads(entry.read_text("utf-8")), Family)
        for entry in data.iterdir()
        if entry.name.endswith(".toml")
    ]
    return tuple(sorted(found, key=lambda family: family.name))


@cache
def families() -> tuple[Family, ...]:
    """All families, of the package and of the user, sorted by name. Raises BadSource for a wrong file of the user."""
    return tuple(sorted((*packaged(), *user_families(packaged())), key=lambda family: family.name))


@cache
def by_name() -> dict[str, Family]:
    """All families by their name."""
    return {family.name: family for family in families()}


@cache
def by_model_type() -> dict[str, Family]:
    """All families by the `model_type` of a config."""
    return {model_type: family for family in families() for model_type in family.model_types}
