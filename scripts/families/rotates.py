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
    """Return every class and function that the models of a type use, each with its file.

    It starts from the classes that the auto classes make for the type, and from those that have its
    config class, and follows the names that each definition uses.
    """
    # names that are to be followed, each with the file that uses it
    waiting: list[tuple[Module, str]] = []
    config = config_classes()[model_type]
    classes = model_classes().get(model_type, frozenset())
    for path in modeling_files(model_type):
        here = module(path)
        for name in here.code:
            if name in classes or config in here.configs(name):
                waiting.append((here, name))

    found: dict[tuple[Path, str], Module] = {}
    while waiting:
        user, name = waiting.pop()
        home = user.find(name)  # the file that defines it
        if home is None or (home.path, name) in found:
            continue
        found[home.path, name] = home
        for used in home.uses(name):
            waiting.append((home, used))
    return tuple((home, name) for (_, name), home in found.items())
