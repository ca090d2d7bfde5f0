"""Trainer: what is known about one program that fine-tunes checkpoints, from `data/*.toml`."""

from __future__ import annotations

from functools import cache

import msgspec

from ..errors import UsageError
from ..formats.typed import package_data, package_files


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement on a trainer.

    says: the statement. source: file and line in the release, or what was executed. run: whether it was executed.
    """

    says: str
    source: str
    run: bool = False


class Rotary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rotary code that a trainer puts in the place of transformers' own.

    model_types: of config.json, for which it does. rope_types: those that it computes. two_lists: whether it switches
    between two factor lists. source: file and line in the release.
    """

    model_types: tuple[str, ...]
    rope_types: tuple[str, ...]
    two_lists: bool
    source: str


class Trainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A release of a trainer.

    name: as `--for` takes it. title: for people. version: that was looked at. transformers: the newest version that it
    allows, empty where any is. file: the name to save its snippet under; `templates/training/FILE.jinja` makes it.
    command: what runs it. length: its option for the length of sequences. untouched: its options that would scale RoPE
    again. no_code: why checkpoints with a modelling file of their own are refused, empty where they are trained.
    rotary: its own rotary code. facts: what it does with RoPE and lengths.
    """

    name: str
    title: str
    version: str
    file: str
    command: str
    length: str
    untouched: tuple[str, ...]
    facts: tuple[Fact, ...]
    transformers: str = ""
    no_code: str = ""
    rotary: tuple[Rotary, ...] = ()

    @property
    def display_name(self) -> str:
        """The title with the version."""
        return f"{self.title} {self.version}"


@cache
def trainers() -> dict[str, Trainer]:
    """All trainers by name, sorted."""
    found = [package_data(entry, Trainer) for entry in package_files("ropeconv.training", "data", ".toml")]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def find_trainer(name: str) -> Trainer:
    """The trainer of a name. Raises UsageError for one that is not known."""
    if name not in trainers():
        raise UsageError(f"no trainer is known as {name}; choose {', '.join(trainers())}")
    return trainers()[name]
