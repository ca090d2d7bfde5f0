"""A model in one GGUF file or in several shards, read as one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import BadSource
from ..identity import FileIdentity, identity, refuse_changed
from .header import Header, TensorInfo, read_header

SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
CHUNK = 1 << 22


@dataclass(frozen=True)
class GgufFile:
    """A GGUF model on disk.

    path: the file, or the first shard. paths, headers: of every shard, in order; the first header has the keys. seen:
    what tells that a shard is the one whose header was read.
    """

    path: Path
    paths: tuple[Path, ...]
    headers: tuple[Header, ...]
    seen: tuple[FileIdentity | None, ...] = field(compare=False)

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Reads the headers of a file and its shards.

        Raises BadSource for damaged files, for a path to another shard than the first, and for a missing shard.
        """
        seen, first = [identity(path)], read_header(path)
        count = first.whole("split.count") or 1
        match = SHARD.match(path.name)
        number = first.whole("split.no", int(match["number"]) - 1 if match else 0)
        if number != 0:
            beginning = f"{match['stem']}-00001-of-{match['count']}.gguf" if match else "the first one"
            raise BadSource(f"{path.name} is shard {number + 1} of a split model; give {beginning}")
        if count == 1:
            return cls(path, (path,), (first,), tuple(seen))
        if match is None or int(match["count"]) != count:
            raise BadSource(
                f"{path.name} is the first of {count} shards, so it must be named ...-00001-of-{count:05}.gguf; "
                "give it back its name"
            )
        paths = [path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
        for other in paths:
            if not other.is_file():
                raise BadSource(f"{other.name} is missing beside {path.name}; download that shard too")
        seen += [identity(other) for other in paths[1:]]
        headers = (first, *(read_header(other) for other in paths[1:]))
        names: set[str] = set()
        for header, other in zip(headers, paths, strict=True):
            doubled = names & header.tensors.keys()
            if doubled:
                raise BadSource(f"{other.name} repeats the tensor {min(doubled)!r} of another shard; download it again")
            names |= header.tensors.keys()
        return cls(path, tuple(paths), headers, tuple(seen))

    def refuse_changed(self) -> None:
        """Raises BadSource where a shard is not the file any more whose header was read."""
        refuse_changed(dict(zip(self.paths, self.seen, strict=True)))

    @property
    def header(self) -> Header:
        """The first header, which has the keys."""
        return self.headers[0]

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The infos of all tensors in all shards, by name."""
        return {name: info for header in self.headers for name, info in header.tensors.items()}

    @cached_property
    def usual_type(self) -> int:
        """ggml's number of the most frequent type of matrices."""
        types = [info.type for info in self.tensors.values() if len(info.shape) > 1]
        return max(set(types), key=types.count)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key in the first header, decoded to Python's types."""
        return self.header.get(key, default)

    def shard(self, name: str) -> int:
        """The index of the shard that holds a tensor, from 0."""
        return next(i for i, header in enumerate(self.headers) if name in header.tensors)

    def read(self, name: str) -> bytes:
        """The bytes of a tensor, read at once."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str, size: int = CHUNK) -> Iterator[bytes]:
        """Yields the bytes of a tensor in pieces of `size` bytes. Raises BadSource where the file is cut off."""
        number = self.shard(name)
        info = self.headers[number].tensors[name]
        with self.paths[number].open("rb") as file:
            file.seek(self.headers[number].data_start + info.offset)
            left = info.size
            while left:
                block = file.read(min(size, left))
                if not block:
                    raise BadSource(f"{self.paths[number].name} was cut off while it was read; run again")
                left -= len(block)
                yield block
