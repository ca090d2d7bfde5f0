"""Writes `ropeconv/models/rope_keys.json`: the keys about RoPE that the class of each family
computes with.
"""

import copy
import inspect
import json
from collections.abc import Iterator
from typing import Any

from ropeconv.inspection.problems import ROPE_KEY
from ropeconv.models.family import Family
from ropeconv.models.registry import package_families
from scripts.laboratory.key_reader import attention_keys

from .config_keys import FILE as BESIDE
from .library import config_classes, modeling_files
from .walk import default_config

FILE = BESIDE.with_name("rope_keys.json")
LINEAR = {"rope_type": "linear", "factor": 3.0}
TRIED: dict[str, Any] = {
    "rope_theta": 54321.0,
    "rope_scaling": LINEAR,
    "original_max_position_embeddings": 77,
    "partial_rotary_factor": 0.375,
    "rotary_pct": 0.125,
    "rotary_emb_base": 54321.0,
    "rotary_dim": 8,
    "rotary_base": 54321.0,
    "rope_ratio": 3.0,
    "rope_local_base_freq": 54321.0,
    "swa_rope_theta": 54321.0,
    "global_rope_theta": 54321.0,
    "local_rope_theta": 54321.0,
    "rope_percent": 0.125,
    "swa_rope_scaling": LINEAR,
    "rope_type": "linear",
    "rope_factor": 3.0,
    "compress_rope_theta": 54321.0,
    "qk_rope_head_dim": 8,
}
"""Keys that publishers write outside the RoPE dictionary, with values that no class has by
default.
"""
BASES: tuple[dict[str, Any], ...] = (
    {},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"rope_scaling": {"rope_type": "default"}},
)


def keys_of(family: Family) -> list[str] | None:
    """The keys about RoPE that the classes of a family compute with; None where transformers has
    none of them.
    """
    known = [name for name in family.model_types if name in config_classes()]
    keys = {"rope_parameters"}
    for model_type in known:
        config = default_config(model_type).get_text_config()
        fields = {name for kind in type(config).__mro__ for name in inspect.get_annotations(kind)}
        read = {key for path in modeling_files(model_type) for key in attention_keys(path).top}
        keys |= {key for key in fields | read if ROPE_KEY.search(key)}
        keys |= set(_effective(type(config)))
    return sorted(keys) if known else None


def _effective(kind: type) -> Iterator[str]:
    """The keys that change something else in a config of a class, or fail there."""
    for base in BASES:
        plain = _made(kind, base)
        for key, value in TRIED.items() if plain else ():
            changed = _made(kind, {**base, key: value})
            if changed is None or {**plain, key: None} != {**changed, key: None}:
                yield key


def _made(kind: type, settings: dict[str, Any]) -> dict[str, Any] | None:
    """A config of a class as data; None where the class does not take the settings."""
    try:
        written: dict[str, Any] = json.loads(json.dumps(kind(**copy.deepcopy(settings)).to_dict()))
    except Exception:
        return None
    return written


def text() -> str:
    """The content of the file, a line for each family of the package."""
    by_family = {family.name: keys_of(family) for family in package_families()}
    lines = [f"{json.dumps(name)}: {json.dumps(keys)}" for name, keys in by_family.items() if keys]
    return "{\n" + ",\n".join(lines) + "\n}\n"
