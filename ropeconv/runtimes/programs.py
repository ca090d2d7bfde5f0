"""Programs that people name for `--runtime` and that are none of its rows: `programs.toml`.

Begin with `program_of`.
"""

import re
from functools import cache

import msgspec

from .stored import runtime_data


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program that runs models in other runtimes, or a runtime that was not tested here.

    The fields are explained in `programs.toml`.
    """

    title: str
    source: str
    also: tuple[str, ...] = ()
    runs: str = ""
    hosts: str = ""
    nearest: str = ""
    why: str = ""

    @property
    def note(self) -> str:
        """A sentence on whose status counts for it; empty where it has none of its own."""
        if not self.runs:
            return ""
        return (
            f"{self.title} runs GGUF files in llama.cpp, whose support counts for it; which build"
            " of llama.cpp a version ships was not checked."
        )

    @property
    def answer(self) -> str:
        """The name to give instead, and what to do; empty where its name is accepted."""
        if self.hosts:
            return f"{self.title} runs {self.hosts}; name one of these instead"
        if self.nearest:
            return (
                f"{self.title} is not known, since it was not run here; the nearest that is:"
                f" {self.nearest} ({self.why}). Name that to choose the form of the output, and"
                f" compare the perplexity beyond the trained context in {self.title} with that of"
                " `ropeconv eval`"
            )
        return ""


def letters(name: str) -> str:
    """A name as names are compared: lower case, without blanks, dashes, dots and underscores."""
    return re.sub(r"[\s._-]+", "", name).lower()


@cache
def programs() -> tuple[Program, ...]:
    """Return all programs of the package, in the order of the file."""
    return runtime_data("programs.toml", dict[str, tuple[Program, ...]])["programs"]


@cache
def _by_letters() -> dict[str, Program]:
    """Return the programs by the letters of each of their names."""
    known = {}
    for program in programs():
        for name in (program.title, *program.also):
            known[letters(name)] = program
    return known


def program_note(runtime: str) -> str:
    """Return the note of the program that a user named for `--runtime`; empty for other names."""
    program = program_of(runtime)
    if program is None:
        return ""
    return program.note


def program_of(runtime: str) -> Program | None:
    """Return the program that a user named, with or without a version; None for other names."""
    return _by_letters().get(letters(runtime.partition("@")[0]))
