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
    """The keys of the config class of a family's text model, and those that earlier configs have;
    empty without it.
    """
    if family.text_type not in config_classes():
        return []
    config = default_config(family.text_type)
    kind = type(config.get_text_config() if family.halves else config)
    fields = {
        name
        for name in inspect.get_annotations(kind)
        if not name.startswith(("base_model", "keys_to"))
    }
    earlier = {*LEGACY, *kind.attribute_map.values(), *IN_KWARGS.findall(inspect.getsource(kind))}
    return sorted(
        {name for name in fields | earlier if not name.startswith("_")}
        - {"rope_parameters", "model_type"}
    )


def text() -> str:
    """The content of the file, a line for each family of the package."""
    by_family = {family.name: keys_of(family) for family in package_families()}
    lines = [f"{json.dumps(name)}: {json.dumps(keys)}" for name, keys in by_family.items() if keys]
    return "{\n" + ",\n".join(lines) + "\n}\n"
