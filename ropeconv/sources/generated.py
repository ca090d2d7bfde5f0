"""The entries of files that a conversion makes, for the lists of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from .source import GeneratedFile, SourceFile


class Sized(Protocol):
    """A shard that a conversion makes. name: of the file. size: in bytes."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Sized)


def generated_shards(
    shards: Iterable[S],
    writer: Callable[[S], Callable[[Path, Callable[[int], None]], None]],
    stream: Callable[[S], Iterator[bytes | memoryview]],
) -> list[GeneratedFile]:
    """The entries of shards that a conversion makes. writer, stream: of each, as in GeneratedFile."""
    return [GeneratedFile(shard.name, shard.size, writer(shard), partial(stream, shard)) for shard in shards]


def made_files(texts: Mapping[str, str], generated: Iterable[GeneratedFile]) -> list[SourceFile]:
    """The entries of files that a conversion makes. texts: of small ones by name. generated: the large ones."""
    made = [SourceFile(name, len(text.encode())) for name, text in texts.items()]
    return made + [SourceFile(item.name, item.size) for item in generated]
