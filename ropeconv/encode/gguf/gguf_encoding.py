"""GgufEncoding, one way to write a schedule into a GGUF file, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...formats.gguf import Edit
from ...rope.schedule import Schedule
from .gguf_model import GgufModel

MakeEdit = Callable[[Schedule, GgufModel], Edit]


@dataclass(frozen=True)
class GgufEncoding:
    """A way to write a schedule into a GGUF file.

    name: as `--encoding` takes it. order: the order in which "auto" tries encodings, lowest first. edit: from a
    schedule and a model to the edit of the file; raises UnsupportedBake for schedules that it cannot hold.
    """

    name: str
    order: int
    edit: MakeEdit


REGISTRY: dict[str, GgufEncoding] = {}


def gguf_encoding(name: str, *, order: int) -> Callable[[MakeEdit], MakeEdit]:
    """Decorator: registers a function as an encoding. name, order: as in `GgufEncoding`."""

    def register(edit: MakeEdit) -> MakeEdit:
        REGISTRY[name] = GgufEncoding(name, order, edit)
        return edit

    return register


def all_gguf_encodings() -> dict[str, GgufEncoding]:
    """All registered encodings by name, in their order."""
    return {found.name: found for found in sorted(REGISTRY.values(), key=lambda found: found.order)}
