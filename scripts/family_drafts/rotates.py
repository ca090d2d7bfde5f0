"""Whether the models of a type rotate queries and keys, found by following the names that their classes use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from .library import Module, config_classes, model_classes, modeling_files, module

ROTARY = re.compile(r"rotary|rope(?!rt)|rotate_(half|every_two)", re.IGNORECASE)
"""Names of the classes and functions of transformers that rotate."""


@cache
def rotary_code(model_type: str) -> tuple[str, ...]:
    """Names of the rotary classes and functions that the models of a type reach; empty where it does not rotate.

    Starts from the classes that the auto classes make for it, and from those that take its config class.
    """
    found: set[str] = set()
    for path in modeling_files(model_type):
        here = module(path)
        config, classes = config_classes()[model_type], model_classes().get(model_type, frozenset())
        starts = [name for name in here.code if name in classes or config in here.configs(name)]
        found |= {name for name in reached(here, starts) if ROTARY.search(name)}
    return tuple(sorted(found))


def reached(start: Module, names: Iterable[str]) -> set[str]:
    """Every class and function of modelling files that some definitions use, with their methods.

    start: the file of the definitions. names: of them.
    """
    waiting = [(start, name) for name in names]
    seen: set[tuple[str, str]] = set()
    found: set[str] = set()
    while waiting:
        where, name = waiting.pop()
        definition = where.find(name)
        if definition is None or (str(definition[0].path), name) in seen:
            continue
        home = definition[0]
        seen.add((str(home.path), name))
        found |= home.methods(name)
        waiting += [(home, used) for used in home.uses(name)]
    return found
