"""The encodings of a GGUF file: each turns a schedule into an edit of the header and of rope tensors."""

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

    order: its place where "auto" looks for the plainest, lowest first. edit: raises UnsupportedBake for what it cannot
    hold.
    """

    name: str
    order: int
    edit: MakeEdit


REGISTRY: dict[str, GgufEncoding] = {}


def gguf_encoding(name: str, *, order: int) -> Callable[[MakeEdit], MakeEdit]:
    """Registers a function as an encoding; the parameters are those of `GgufEncoding`."""

    def register(edit: MakeEdit) -> MakeEdit:
        REGISTRY[name] = GgufEncoding(name, order, edit)
        return edit

    return register


def all_gguf_encodings() -> dict[str, GgufEncoding]:
    """Every registered encoding by name, plainest first."""
    return {found.name: found for found in sorted(REGISTRY.values(), key=lambda found: found.order)}
