"""Writes `ropeconv/models/config_keys.json`: the keys that configs of each family may have."""

import inspect
import json
import re
from pathlib import Path

from ropeconv.models.family import Family
from ropeconv.models.registry import package_families

from .library import config_classes
from .walk import default_config

FILE = Path(__file__).parents[2] / "ropeconv" / "models" / "config_keys.json"
LEGACY = ("rope_theta", "rope_scaling")
IN_KWARGS = re.compile(r"""kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)\"""")


def keys_of(family: Family) -> list[str]:
    """Return the keys that the config of a family's text model may have, sorted.

    These are the fields of its config class in transformers, and names that earlier configs have.
    The list is empty for a family without a class.
    """
    if family.text_type not in config_classes():
        return []
    config = default_config(family.text_type)
    if family.halves:
        config = config.get_text_config()
    config_class = type(config)

    fields = set()
    for name in inspect.get_annotations(config_class):
        if not name.startswith(("base_model", "keys_to")):
            fields.add(name)

    # earlier names: those that the class maps to others, and those that it takes from its kwargs
    earlier = {*LEGACY, *config_class.attribute_map.values()}
    earlier |= set(IN_KWARGS.findall(inspect.getsource(config_class)))
    names = {name for name in fields | earlier if not name.startswith("_")}
    return sorted(names - {"rope_parameters", "model_type"})


def text() -> str:
    """The content of the file, a line for each family of the package."""
    by_family = {family.name: keys_of(family) for family in package_families()}
    lines = [f"{json.dumps(name)}: {json.dumps(keys)}" for name, keys in by_family.items() if keys]
    return "{\n" + ",\n".join(lines) + "\n}\n"
