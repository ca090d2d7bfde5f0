"""The registry of input formats, and what a file in `kinds/` has to provide."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from random import Random

Commands = list[list[str]]
Write = Callable[[Random, Path], Commands]

FORMATS: dict[str, Write] = {}
"""Per format a function `write(random, folder)`, which makes one input and returns the command lines to run on it.

random: the only source of chance, so that the N-th input is always the same. folder: empty, and the working directory
of the commands. The command lines are without `ropeconv`.
"""
PREPARE: dict[str, Callable[[], None]] = {}
"""What a worker does once, before the inputs of a format."""


def register(name: str, prepare: Callable[[], None] = lambda: None) -> Callable[[Write], Write]:
    """Decorator: adds a format. name: as in the table of `scripts/faults`. prepare: what a worker does before."""

    def add(write: Write) -> Write:
        FORMATS[name], PREPARE[name] = write, prepare
        return write

    return add


def commands(text: str) -> Commands:
    """Command lines, with semicolons between them."""
    return [line.split() for line in text.split(";")]


def load() -> dict[str, Write]:
    """All formats: every file of `kinds/` is imported, so that a new one needs no entry elsewhere."""
    package = importlib.import_module("tests.faults.inputs.kinds")
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{found.name}")
    return FORMATS


def write_input(name: str, number: int, folder: Path) -> Commands:
    """Writes the input of a number into a folder, which is made, and returns its command lines."""
    folder.mkdir()
    return load()[name](Random(f"{name} {number}"), folder)
