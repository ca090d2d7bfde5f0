"""The families of the package, from `data/*.toml`, and those of the user."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec
import tomli

from ..errors import BadSource, UsageError
from ..formats.files import expanded, open_regular
from ..formats.package_data import package_data, package_files
from .family import Family
from .schema import Config, text_config

VARIABLE = "ROPECONV_FAMILIES"
LONGEST = 64 << 10
"""Bytes of a file; those of the package have up to 3,000."""
MOST_FILES = 1_000
OWN = ("origin", "assumed")
"""Fields that ropeconv fills."""


def user_families(packaged: Iterable[Family]) -> tuple[Family, ...]:
    """The families of the user, by the names of their files; none where the folder is not there.

    The folder is $ROPECONV_FAMILIES, else `ropeconv/families` below the folder of settings.

    packaged: the families of the package, whose names and model types no file may have. Raises BadSource for a file
    that is not the description of a family, and for names that are there twice.
    """
    path = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    directory = expanded(path) if path else Path(base) / "ropeconv" / "families"
    if not directory.is_dir():
        if path:
            raise BadSource(f"{VARIABLE} names {directory}, which is not a folder; create it, or unset the variable")
        return ()
    paths = sorted(path for path in directory.iterdir() if path.suffix == ".toml")
    if len(paths) > MOST_FILES:
        raise BadSource(f"{directory} has more than {MOST_FILES:,} families; move some of them away")
    owners = {name: "the package" for family in packaged for name in _names(family)}
    loaded = []
    for file in paths:
        family = read_family(file)
        for name in _names(family):
            if name in owners:
                raise BadSource(
                    f"{file} describes {name}, which {owners[name]} already defines; choose another name and other "
                    "model_types, then pass --family"
                )
            owners[name] = str(file)
        loaded.append(family)
    return tuple(loaded)


def read_family(path: Path) -> Family:
    """The family that a file describes. Raises BadSource, with the file and the field, if it is invalid."""
    try:
        with open_regular(path) as file:
            data = file.read(LONGEST + 1)
    except OSError as problem:
        raise BadSource(f"{path} cannot be read ({problem.strerror}); correct or remove it") from None
    if len(data) > LONGEST:
        raise BadSource(f"{path} is longer than {LONGEST:,} bytes; correct or remove it")
    try:
        fields = tomli.loads(data.decode())
        family = msgspec.convert(fields, Family)
    except (ValueError, msgspec.ValidationError, RecursionError) as problem:
        raise BadSource(f"{path} is not a family description: {problem}; correct or remove it") from None
    wrong = next((key for key in OWN if key in fields), "") or _wrong(family)
    if wrong:
        raise BadSource(f"{path} is not a family description: `{wrong}` is invalid; correct or remove it")
    return msgspec.structs.replace(family, origin=str(path))


def _wrong(family: Family) -> str:
    """The first field whose value no model has; empty for a family that can be used."""
    defaults, parts = family.defaults, (family.weights.q and family.weights.k) or family.weights.fused
    sizes = defaults.context, defaults.head_dim, defaults.hidden, defaults.layers, defaults.heads, defaults.kv_heads
    wrong = {
        "name": not family.name.replace("_", "").replace("-", "").replace(".", "").isalnum(),
        "weights": not (family.refuse or parts),
        "weights.layer": not all(_places_layer(pattern, family.layers.blocks) for pattern in family.weights.layer),
        "defaults": any(size is not None and not 0 < size < 1 << 31 for size in sizes),
        "defaults.theta": not all(1 < base < 1e30 for base in (defaults.theta, defaults.local_theta or 2.0)),
        "defaults.partial_rotary_factor": not 0 < defaults.partial_rotary_factor <= 1,
        "layers.interval": family.layers.interval < 0,
        "layers.blocks": family.layers.blocks < 1,
    }
    return next((field for field, bad in wrong.items() if bad), "")


def _places_layer(pattern: str, blocks: int) -> bool:
    """Whether a prefix has the number of the layer once, and that of the attention block where there are several."""
    remainder = pattern.replace("{layer}", "0").replace("{block}", "0")
    counts = (pattern.count("{layer}"), pattern.count("{block}"))
    return counts == (1, int(blocks > 1)) and not set("{}") & set(remainder)


def _names(family: Family) -> tuple[str, ...]:
    return (f"the family {family.name!r}", *(f"the model_type {name!r}" for name in family.model_types))


@cache
def packaged() -> tuple[Family, ...]:
    """The families of the package, sorted by name."""
    loaded = [package_data(entry, Family) for entry in package_files("ropeconv.models", "data", ".toml")]
    return tuple(sorted(loaded, key=lambda family: family.name))


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


class RefusedType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Model types that are refused for one reason. reason: what follows "model_type NAME" in the message."""

    reason: str
    model_types: tuple[str, ...]


@cache
def refused() -> dict[str, str]:
    """Why each model type is refused that no family has, by its name."""
    table = package_data(files("ropeconv.models") / "refused.toml", dict[str, tuple[RefusedType, ...]])
    return {model_type: group.reason for group in table["refused"] for model_type in group.model_types}


LAYOUTS = {"half": "pairs (i, i + r/2) rotate", "interleaved": "pairs (2i, 2i + 1) rotate"}
KINDS = {"global": "rotates", "local": "rotates by its own base and is not extended", "none": "does not rotate"}


def assumed_family(config: Config, name: str) -> Family:
    """The family of that name, as one that has the model type of a config too. Raises UsageError for another name."""
    family = by_name().get(name)
    if family is None:
        near = difflib.get_close_matches(name, by_name(), 3)
        meant = f"did you mean {' or '.join(near)}" if near else "`ropeconv list families` lists them"
        raise UsageError(f"--family {name} is not known; {meant}, or describe it in a file (docs/families.md)")
    model_type = str((text_config(config) or {}).get("model_type") or config.get("model_type") or "")
    if model_type in family.model_types:
        return family
    return msgspec.structs.replace(family, model_types=(*family.model_types, model_type), assumed=model_type)


def assumption(family: Family) -> str:
    """A sentence on what is assumed about a model that is treated as this family; empty for a model that is of it."""
    if not family.assumed:
        return ""
    keys, weights, window = family.keys, family.weights, family.window
    width = family.defaults.head_dim or f"{keys.hidden[0]} / {keys.heads[0]}"
    facts = [
        f"its RoPE is that of {family.display_name}",
        LAYOUTS[family.layout] + (", multi-head latent attention" if family.mla else ""),
        f"head_dim from {', '.join(keys.head_dim)}, else {width}",
        f"a layer of type {' and '.join(f'{name} {KINDS[kind]}' for name, kind in family.layers.types.items())}"
        if family.layers.types
        else f"the layers that {family.layers.flags} flags rotate"
        if family.layers.flags
        else "every layer rotates",
        f"queries and keys from {weights.fused or f'{weights.q} and {weights.k}'}",
    ]
    facts += [f"norms of them are {weights.q_norm} and {weights.k_norm} ({weights.norm})"] if weights.q_norm else []
    facts += [f"a window in {window.key}"] if window.key else []
    return f"model_type {family.assumed!r} is treated as {family.name}: {'; '.join(facts)}"
