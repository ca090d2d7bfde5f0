"""Shard, one file of a GGUF model wherever it is, and LocalShard, one on this disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from ...errors import BadSource
from ..identity import FileIdentity, identity, refuse_changed
from .header import Header, read_header


class Shard(ABC):
    """A file of a GGUF model: the only one, or one of several. name: of the file, without its folder."""

    name: str

    @abstractmethod
    def header(self) -> Header:
        """Its header. Raises BadSource where that is damaged, and for a file that is not there."""

    @abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop - 1, for which the file is not fetched. Raises BadSource where it is shorter."""

    @abstractmethod
    def path(self) -> Path:
        """Its path on this disk, to which it is fetched first where it is not there."""

    @abstractmethod
    def beside(self, name: str) -> Shard:
        """Another file of the same folder. name: of that. Raises BadSource where it is known to be missing."""

    @abstractmethod
    def refuse_changed(self) -> None:
        """Raises BadSource where it is not the file any more whose header was read."""


class LocalShard(Shard):
    """A file on this disk. path: of it. `seen` tells that it is the file whose header was read."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = path.name, path
        self.seen: FileIdentity | None = identity(path)

    def header(self) -> Header:
        return read_header(self._path)

    def read(self, start: int, stop: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(start)
            found = file.read(stop - start)
        if len(found) != stop - start:
            raise BadSource(f"{self.name} was cut off while it was read; run again")
        return found

    def path(self) -> Path:
        return self._path

    def beside(self, name: str) -> LocalShard:
        path = self._path.with_name(name)
        if not path.is_file():
            raise BadSource(f"{name} is missing beside {self.name}; download that shard too")
        return LocalShard(path)

    def refuse_changed(self) -> None:
        refuse_changed({self._path: self.seen})
