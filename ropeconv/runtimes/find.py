"""Finds rows of the table of runtimes by the names that people write."""

from __future__ import annotations

from collections.abc import Iterable

from ..rope.errors import RecipeError
from .runtime import LLAMA_CPP, Runtime, runtimes
from .versions import choose

ALL = "all"
ALIASES = {"llama.cpp": LLAMA_CPP, "gguf": LLAMA_CPP}


def newest(name: str) -> Runtime:
    """The newest row of a runtime."""
    return [row for row in runtimes() if row.name == name][-1]


def canonical(wanted: str) -> str:
    """`name` or `name@version` with aliases replaced and in lower case: llama.cpp and gguf are llama-cpp."""
    name, at, version = wanted.strip().partition("@")
    return ALIASES.get(name.lower(), name.lower()) + at + version


def find(wanted: str, also: Iterable[str] = ()) -> tuple[Runtime, ...]:
    """The rows for `name` (all current ones, the newest last), for `name@version` that version alone, or for "all".

    also: other names that the caller knows, for the message. Raises RecipeError for an unknown name, and for a version
    that no row covers.
    """
    name, _, version = canonical(wanted).partition("@")
    if name == ALL and not version:
        return tuple(row for row in runtimes() if row.current)
    rows = [row for row in runtimes() if row.name == name]
    if not rows:
        others = ", ".join(ALIASES)
        known = dict.fromkeys(row.name for row in runtimes())
        names = ", ".join([*(f"{name} (or {others})" if name == LLAMA_CPP else name for name in known), *also])
        raise RecipeError(f"--runtime {wanted}: no such runtime is known; known: {names}")
    return choose(wanted, version, rows)
