"""The receipt of what is not a checkpoint of its own: a PEFT adapter beside an output, a compiled
graph, and the set of profiles of one model.

It has the digest of every file, and the digest of the schedule, which the output has too, or those
of the profiles.
"""

from pathlib import Path
from typing import Literal

import msgspec

from ...errors import BadSource
from ...formats import jsontext
from ...formats.files import read_text
from ...formats.jsontext import JsonObject
from ...models.source import RECEIPT
from ...version import SCHEMA
from .receipt import FileRecord, SourceRecord

KEY = "companion"
"""The key that tells such a receipt from that of a checkpoint."""


class CompanionReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """How an adapter, a graph or a set of profiles was made."""

    schema: int = SCHEMA
    """The version of these fields."""

    ropeconv: str
    """The version of ropeconv that wrote it."""

    companion: Literal["adapter", "graph", "profiles"]
    """The kind of output that it describes."""

    source: SourceRecord
    """The adapter, the graph, or the model of the profiles, that it was made from."""

    output: str = ""
    """The name of the output that an adapter belongs to, beside it; empty for a graph."""

    recipe: JsonObject = {}
    """The recipe, as `Recipe.to_dict` has it; empty for profiles."""

    schedule: str = ""
    """The digest of the schedule, a sha256 over everything that changes a logit.

    It is empty for profiles.
    """

    context: int
    """The context in tokens; for profiles, the longest one."""

    members: dict[str, str] = {}
    """The profiles by name, with the digest of what made each; empty for others."""

    files: tuple[FileRecord, ...] = ()
    """All files except the receipt itself, and receipts of profiles, which get results later."""

    def to_dict(self) -> JsonObject:
        """Return the receipt as JSON-ready data, with every key."""
        return dict(msgspec.to_builtins(self))


def is_companion(data: object) -> bool:
    """Return whether the JSON of a ropeconv.json is a receipt of this kind."""
    return isinstance(data, dict) and KEY in data


def describe_kind(data: JsonObject) -> str:
    """Return in words what a receipt of this kind is for."""
    kinds = {"adapter": "an adapter", "profiles": "a set of profiles"}
    return kinds.get(str(data[KEY]), "a compiled graph")


def read_companion(folder: Path) -> CompanionReceipt | None:
    """Return the receipt in a folder that holds an adapter, a graph or a set of profiles.

    A receipt is what ropeconv recorded when it wrote the folder. A folder with another receipt, or
    without one, gives None.

    Raises:
        BadSource: The receipt cannot be read.
    """
    path = folder / RECEIPT
    if not path.is_file():
        return None
    data = jsontext.parse(read_text(path, str(path)), str(path))
    if not is_companion(data):
        return None
    try:
        return msgspec.convert(data, CompanionReceipt)
    except ValueError as problem:
        raise BadSource(
            f"{path} is not a receipt of ropeconv ({problem}); run apply again"
        ) from None
