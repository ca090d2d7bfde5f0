"""A model in one GGUF file or in several shards, read as one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import TOO_MANY, BadSource
from ..disk import FileIdentity, identity, refuse_changed
from .header import MAX_HEADER, MAX_TENSORS, GgufHeader, TensorInfo, read_header


class Shard:
    """A file of a GGUF model: the only one, or one of several; here on this disk."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        """The name of the file, without its folder."""

        self._path = path
        self.identity: FileIdentity | None = identity(path)
        """The identity of the file when its header was read."""

    def header(self) -> GgufHeader:
        """Return its header.

        Raises:
            BadSource: Where that is damaged, and for a missing file.
        """
        return read_header(self._path)

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes start .. stop - 1, for which the file is not fetched.

        Raises:
            BadSource: Where it is shorter.
        """
        with self._path.open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        if len(data) != stop - start:
            raise BadSource(f"{self.name} was cut off while it was read; run again")
        return data

    def path(self) -> Path:
        """Return its local path; the file is fetched if needed."""
        return self._path

    def beside(self, name: str) -> Shard:
        """Return another file of the same folder.

        Raises:
            BadSource: Where it is known to be missing.
        """
        path = self._path.with_name(name)
        if not path.is_file():
            raise BadSource(f"{name} is missing beside {self.name}; download that shard too")
        return Shard(path)

    def refuse_changed(self) -> None:
        """Raise BadSource where it is no longer the file whose header was read."""
        refuse_changed({self._path: self.identity})


SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
MAX_SHARDS = 1 << 12
"""Published models have up to some hundred."""


def shard_names(name: str, count: int) -> list[str]:
    """Return the file names of a model: `name`, or with llama.cpp's numbers for several shards."""
    if count == 1:
        return [name]
    match = SHARD.match(name)
    stem = match["stem"] if match else name.removesuffix(".gguf")
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def _shard_count(name: str, header: GgufHeader) -> int:
    """Return the number of shards of a model, 1 for a model in one file.

    Args:
        name: The name of the first file, such as model-00001-of-00003.gguf.
        header: The header of this file.

    Raises:
        BadSource: The file is not the first shard, is named otherwise, or claims more shards than
            any model has.
    """
    # the number and the count in the name
    name_of_shard = SHARD.match(name)  # None for a name without a number
    number_in_name = 1
    count_in_name = 0
    if name_of_shard:
        number_in_name = int(name_of_shard["number"])
        count_in_name = int(name_of_shard["count"])

    # llama.cpp's gguf-split counts from 1 in names, and from 0 in the key split.no
    index = header.whole("split.no", number_in_name - 1)
    if index != 0:
        first = "the first one"
        if name_of_shard:
            first = f"{name_of_shard['stem']}-00001-of-{name_of_shard['count']}.gguf"
        raise BadSource(f"{name} is shard {index + 1} of a split model; give {first}")

    # the count in the header; a model in one file may have the key too, with 1 or 0
    count = header.whole("split.count") or 1
    if count == 1:
        return 1
    if count > MAX_SHARDS:
        raise BadSource(f"{name} claims {count} shards, and no model has more than {MAX_SHARDS}")
    # llama.cpp finds the other shards by the name of the first, so it refuses any other name
    if count_in_name != count:
        raise BadSource(
            f"{name} is the first of {count} shards, so it must be named"
            f" ...-00001-of-{count:05}.gguf; give it back its name"
        )
    return count


@dataclass(frozen=True)
class GgufFile:
    """A GGUF model whose headers were read; `Shard.path` fetches a remote shard."""

    shards: tuple[Shard, ...]
    """In order."""

    headers: tuple[GgufHeader, ...]
    """One for each shard; the first has the keys."""

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Read the headers of a local file, the first shard, and of the others. Raises as `of`."""
        return cls.of(Shard(path))

    @classmethod
    def of(cls, first: Shard) -> GgufFile:
        """Read the headers of a file and its shards.

        Raises:
            BadSource: For damaged files, for a shard that is not the first, for a missing shard,
                and for shards whose headers together are larger than those of any model.
        """
        first_header = first.header()
        count = _shard_count(first.name, first_header)
        if count == 1:
            return cls((first,), (first_header,))

        # the headers of the other shards
        _, *other_names = shard_names(first.name, count)
        others = [first.beside(name) for name in other_names]
        headers = [first_header]
        tensor_names = set(first_header.tensors)
        header_bytes = first_header.data_start
        for shard in others:
            header = shard.header()
            headers.append(header)
            repeated = tensor_names & header.tensors.keys()
            if repeated:
                raise BadSource(
                    f"{shard.name} repeats the tensor {min(repeated)!r} of another shard; download"
                    " it again"
                )

            # the first header says how many files are read, so the limits of one header hold for
            # all of them together
            tensor_names |= header.tensors.keys()
            header_bytes += header.data_start
            if header_bytes > MAX_HEADER or len(tensor_names) > MAX_TENSORS:
                raise BadSource(
                    f"the headers of {first.name} and its shards have more than {MAX_HEADER:,}"
                    f" bytes or {MAX_TENSORS:,} tensors together, and those of no model have as"
                    f" many; {TOO_MANY}"
                )
        return cls((first, *others), tuple(headers))

    @property
    def name(self) -> str:
        """The name of the file, or of the first shard, without its folder."""
        return self.shards[0].name

    @property
    def path(self) -> Path:
        """The path of the file, or of the first shard, with the others beside it."""
        return self.paths[0]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The local paths of all shards, which are fetched if needed."""
        return tuple(shard.path() for shard in self.shards)

    def refuse_changed(self) -> None:
        """Raise BadSource where a shard is no longer the file whose header was read."""
        for shard in self.shards:
            shard.refuse_changed()

    @property
    def header(self) -> GgufHeader:
        """The first header, which has the keys."""
        return self.headers[0]

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The tensors of all shards, by name."""
        tensors: dict[str, TensorInfo] = {}
        for header in self.headers:
            tensors |= header.tensors
        return tensors

    @cached_property
    def usual_type(self) -> int:
        """ggml's number of the most frequent type of matrices."""
        types = [info.type for info in self.tensors.values() if len(info.shape) > 1]
        return max(set(types), key=types.count)

    def get(self, key: str, default: object = None) -> Any:
        """Return the decoded value of a key in the first header."""
        return self.header.get(key, default)

    def shard(self, name: str) -> int:
        """Return the index of the shard with a tensor."""
        for index, header in enumerate(self.headers):
            if name in header.tensors:
                return index
        raise KeyError(name)

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        """Return some bytes of a tensor. From the Hub, only these are downloaded.

        Args:
            name: The name of the tensor.
            start: The first byte, from its beginning.
            size: The number of bytes, by default all that follow.

        Raises:
            BadSource: Where the file is cut off.
        """
        index = self.shard(name)
        header = self.headers[index]
        info = header.tensors[name]
        first = header.data_start + info.offset + start
        if size is None:
            size = info.size - start
        return self.shards[index].read(first, first + size)
