"""The families of the package, from `data/*.toml`, and those of the user."""

from __future__ import annotations

from functools import cache

from ..formats.typed import package_data, package_files
from .family import Family
from .user import user_families


@cache
def packaged() -> tuple[Family, ...]:
    """The families of the package, sorted by name."""
    found = [package_data(entry, Family) for entry in package_files("ropeconv.families", "data", ".toml")]
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
