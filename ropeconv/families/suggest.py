"""The family whose config keys fit those of an unknown model type best, as a suggestion."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from functools import cache
from importlib.resources import files

from .keys import Config, text_config
from .registry import families

NOT_OF_MODELS = frozenset(
    "_name_or_path architectures attn_implementation auto_map bos_token_id dtype eos_token_id max_position_embeddings "
    "model_type pad_token_id quantization_config rope_parameters torch_dtype transformers_version use_cache".split()
)
"""Keys that say nothing about a family: those of every config, and of what made the file."""
GOOD = 0.75
"""The share of the keys that has to fit."""
NAMED = 0.5
"""The same for a family whose class the config names."""
UNHEARD = 1.0
"""The weight of a key that no family has; those of families have up to 4."""
ABSENT = 0.2
"""How much a key counts that the class has and the config leaves out, beside one that the class does not have."""
CLASS = re.compile(r"(For\w+|LMHeadModel|Model)$")


@cache
def config_keys() -> dict[str, frozenset[str]]:
    """The keys of the config class of each family, by its name: `config_keys.json`, which `scripts/families` writes."""
    data = json.loads((files("ropeconv.families") / "config_keys.json").read_text("utf-8"))
    return {name: frozenset(keys) - NOT_OF_MODELS for name, keys in data.items()}


def suggestion(config: Config) -> str:
    """What to do about a config of an unknown model type: the family that fits best, or where families are listed."""
    best = best_family(config)
    if not best:
        return "`ropeconv families` lists the known ones, and docs/families.md says how to describe another in a file"
    shown = next(family.display_name for family in families() if family.name == best)
    return (
        f"its fields are those of {shown}: pass --family {best} to treat it as that, and `ropeconv inspect` shows what "
        "that assumes"
    )


def best_family(config: Config) -> str:
    """The name of the family whose keys are most like those of a config; empty where none is like them.

    Keys that few families have count more. A class that the config names decides between families that fit well.
    """
    text = text_config(config)
    part = config if text is None else text
    known, own = config_keys(), set(part) - NOT_OF_MODELS
    counts = Counter(key for keys in known.values() for key in keys)
    weight = {key: math.log((1 + len(known)) / count) + 0.1 for key, count in counts.items()}
    named = _classes(config) | _classes(part)

    def total(keys: frozenset[str] | set[str]) -> float:
        return sum(weight.get(key, UNHEARD) for key in keys)

    def score(name: str) -> float:
        """Tversky's index: the weight of the common keys over that of all, where absent keys have their defaults."""
        both, foreign, absent = known[name] & own, own - known[name], known[name] - own
        return total(both) / (total(both) + total(foreign) + ABSENT * total(absent)) if both else 0.0

    takers = [family for family in families() if family.name in known and not family.refuse]
    fits = {family.name: score(family.name) for family in takers}
    stated = [family.name for family in takers if named & {_plain(name) for name in family.model_types}]
    best = max(stated or fits, key=lambda name: fits[name], default="")
    return best if best and fits[best] >= (NAMED if stated else GOOD) else ""


def _classes(config: Config) -> set[str]:
    """The names of the classes in `architectures`, as model types are written without their underscores."""
    listed = config.get("architectures")
    names = listed if isinstance(listed, list) else []
    return {_plain(CLASS.sub("", name)) for name in names if isinstance(name, str)}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
