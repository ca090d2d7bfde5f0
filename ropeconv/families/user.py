"""Families of the user: TOML files of the same form as those of the package."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..errors import BadSource
from ..formats.regular import expanded, open_regular
from .family import Family

VARIABLE = "ROPECONV_FAMILIES"
LONGEST = 64 << 10
"""Bytes of a file; those of the package have up to 3,000."""
MOST_FILES = 1_000
OWN = ("origin", "assumed")
"""Fields that ropeconv fills."""


def folder() -> Path:
    """Where files of the user are: $ROPECONV_FAMILIES, else `ropeconv/families` below the folder of settings."""
    named = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return expanded(named) if named else Path(base) / "ropeconv" / "families"


def user_families(packaged: Iterable[Family]) -> tuple[Family, ...]:
    """The families of the user, by the names of their files; none where the folder is not there.

    packaged: the families of the package, whose names and model types no file may have. Raises BadSource for a file
    that is not the description of a family, and for names that are there twice.
    """
    place = folder()
    if not place.is_dir():
        if os.environ.get(VARIABLE):
            raise BadSource(f"{VARIABLE} names {place}, which is no folder; make it, or unset the variable")
        return ()
    paths = sorted(path for path in place.iterdir() if path.suffix == ".toml")
    if len(paths) > MOST_FILES:
        raise BadSource(f"{place} has more than {MOST_FILES:,} families; move some of them away")
    known = {name: "the package" for family in packaged for name in _names(family)}
    found = []
    for path in paths:
        family = read_family(path)
        for name in _names(family):
            if name in known:
                raise BadSource(
                    f"{path} describes {name}, which {known[name]} has already; choose another name and other "
                    "model_types, and name the family with --family"
                )
            known[name] = str(path)
        found.append(family)
    return tuple(found)


def read_family(path: Path) -> Family:
    """The family that a file describes. Raises BadSource, with the file and the field, where it is no description."""
    try:
        with open_regular(path) as file:
            data = file.read(LONGEST + 1)
    except OSError as problem:
        raise BadSource(f"{path} cannot be read ({problem.strerror}); correct or remove it") from None
    if len(data) > LONGEST:
        raise BadSource(f"{path} is longer than {LONGEST:,} bytes, which no family needs; correct or remove it")
    try:
        fields = tomllib.loads(data.decode())
        family = msgspec.convert(fields, Family)
    except (ValueError, msgspec.ValidationError, RecursionError) as problem:
        raise BadSource(f"{path} is not the description of a family: {problem}; correct or remove it") from None
    wrong = next((key for key in OWN if key in fields), "") or _wrong(family)
    if wrong:
        raise BadSource(f"{path} is not the description of a family: its {wrong} cannot be used; correct or remove it")
    return msgspec.structs.replace(family, origin=str(path))


def _wrong(family: Family) -> str:
    """The first field whose value no model has; empty for a family that can be used."""
    defaults, parts = family.defaults, (family.weights.q and family.weights.k) or family.weights.fused
    sizes = (defaults.context, defaults.head_dim, defaults.layers, defaults.heads, defaults.kv_heads)
    wrong = {
        "name": not family.name.replace("_", "").replace("-", "").replace(".", "").isalnum(),
        "weights": not (family.refuse or parts),
        "weights.layer": not all(_places_layer(pattern, family.layers.blocks) for pattern in family.weights.layer),
        "weights.block": bool(family.weights.block) and len(family.weights.block) != family.layers.blocks,
        "defaults": any(size is not None and not 0 < size < 1 << 31 for size in sizes),
        "defaults.theta": not all(1 < base < 1e30 for base in (defaults.theta, defaults.local_theta or 2.0)),
        "defaults.partial_rotary_factor": not 0 < defaults.partial_rotary_factor <= 1,
        "layers.interval": family.layers.interval < 0,
        "layers.blocks": family.layers.blocks < 1,
    }
    return next((field for field, bad in wrong.items() if bad), "")


def _places_layer(pattern: str, blocks: int) -> bool:
    """Whether a prefix has the number of the layer once, and that of the attention block where there are several."""
    rest = pattern.replace("{layer}", "0").replace("{block}", "0")
    counts = (pattern.count("{layer}"), pattern.count("{block}"))
    return counts == (1, int(blocks > 1)) and not set("{}") & set(rest)


def _names(family: Family) -> tuple[str, ...]:
    return (f"the family {family.name!r}", *map(_model_type, family.model_types))


def _model_type(name: str) -> str:
    return f"the model_type {name!r}"
