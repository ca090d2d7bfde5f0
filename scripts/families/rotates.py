"""Whether the models of a type rotate queries and keys, found by following the names that their
classes use.
"""

import re
from functools import cache
from pathlib import Path

from .library import Module, config_classes, model_classes, modeling_files, module

ROTARY = re.compile(r"rotary|rope(?!rt)|rotate_(half|every_two)", re.IGNORECASE)
"""Names of the classes and functions of transformers that rotate."""


@cache
def rotary_code(model_type: str) -> tuple[str, ...]:
    """Names of the rotary classes, functions and methods that the models of a type reach; empty
    where none rotates.
    """
    names = {name for home, defined in definitions(model_type) for name in home.methods(defined)}
    return tuple(sorted(name for name in names if ROTARY.search(name)))


def rotary_source(model_type: str) -> str:
    """The text of the rotary classes and functions that the models of a type reach."""
    sources = [home.source(name) for home, name in definitions(model_type) if ROTARY.search(name)]
    return "\n".join(sorted(sources))


@cache
def definitions(model_type: str) -> tuple[tuple[Module, str], ...]:
    """Every class and function that the models of a type use, with its file.

    Starts from the classes that the auto classes make for it, and from those that take its config
    class.
    """
    waiting: list[tuple[Module, str]] = []
    for path in modeling_files(model_type):
        here = module(path)
        config = config_classes()[model_type]
        classes = model_classes().get(model_type, frozenset())
        waiting += [
            (here, name) for name in here.code if name in classes or config in here.configs(name)
        ]
    modules: dict[tuple[Path, str], Module] = {}
    while waiting:
        where, name = waiting.pop()
        home = where.find(name)
        if home is None or (home.path, name) in modules:
            continue
        modules[home.path, name] = home
        waiting += [(home, used) for used in home.uses(name)]
    return tuple((home, name) for (_, name), home in modules.items())
