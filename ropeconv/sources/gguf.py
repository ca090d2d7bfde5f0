"""GgufSource, a GGUF file or the first of several shards, and HubGguf, one on the Hub."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path

from ..errors import BadSource
from ..formats.digest import text_digest, weights_digest
from ..formats.gguf import GgufFile
from ..formats.gguf.file import SHARD
from ..formats.gguf.journal import refuse_changing
from ..formats.gguf.shard import LocalShard
from ..formats.identity import FileIdentity
from .hub_shard import HubShard
from .source import Origin


class GgufSource(Origin):
    """A model in GGUF. path: the file, or its first shard."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reference, self.name = str(path), _model_name(path.name)

    @property
    def path(self) -> Path:
        """The path of the file, or of its first shard with the others beside it."""
        return self._path

    @cached_property
    def file(self) -> GgufFile:
        """The file with its headers. Raises BadSource for damaged files, and for those that are changed in place."""
        if not self._path.is_file():
            raise BadSource(f"{self._path} does not exist; give the path of a GGUF file")
        refuse_changing(self._path)
        try:
            found = GgufFile.open(self._path)
        finally:
            refuse_changing(self._path)  # rather than what is wrong with a header that was read meanwhile
        found.refuse_changed()
        return found

    @cached_property
    def identity(self) -> str:
        parts = []
        for shard, header in zip(self.file.shards, self.file.headers, strict=True):
            places = ((header.data_start + one.offset, one.size) for one in header.tensors.values())
            parts.append(f"{shard.name} {weights_digest(shard.path(), header.data_start, places)}")
        return text_digest(*parts)

    def place_to_change(self) -> Path:
        """The path of the file, for a change in place. Raises BadSource where it is not to be changed."""
        return self._path

    def seen(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return {shard.path(): shard.seen for shard in self.file.shards if isinstance(shard, LocalShard)}


class HubGguf(GgufSource):
    """A model in GGUF on the Hub. Its headers are read by range; its `path` and its tensors are fetched into the cache.

    first: the file, or its first shard.
    """

    def __init__(self, first: HubShard) -> None:
        self.first, self.commit = first, first.commit
        self.reference, self.name = first.reference, _model_name(first.name)

    @property
    def path(self) -> Path:
        return self.file.path

    @cached_property
    def file(self) -> GgufFile:
        """The file with its headers. Raises BadSource for damaged files, and for what a Hub should not answer."""
        return GgufFile.of(self.first)

    @cached_property
    def identity(self) -> str:
        return text_digest(self.first.repo_id, self.first.commit, self.first.place)

    def place_to_change(self) -> Path:
        raise BadSource(
            f"{self.reference} is on the Hub, and --in-place changes a file of this disk; write a new file with -o"
        )

    def seen(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return {}


def _model_name(file: str) -> str:
    match = SHARD.match(file)
    return match["stem"] if match else Path(file).stem
