"""ConvertedSource: a checkpoint in another format, presented in the HF layout by files that are made when read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ..errors import BadSource
from ..formats.safetensors import Header, header_bytes, parse_header, tensor_bytes, write_stream
from ..formats.shards import index_text
from .source import GeneratedFile, Source, SourceFile


class ConvertedTensor(Protocol):
    """A tensor that a conversion makes. dtype: as safetensors names it."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


T = TypeVar("T", bound=ConvertedTensor)


@dataclass(frozen=True)
class Shard(Generic[T]):
    """One safetensors file that a conversion makes. tensors: in order."""

    name: str
    tensors: tuple[T, ...]

    @cached_property
    def head(self) -> bytes:
        """The bytes of its header, which follow from names, dtypes and shapes alone."""
        return header_bytes(((one.name, one.dtype, one.shape) for one in self.tensors), {"format": "pt"})

    @property
    def data_size(self) -> int:
        """Size of all tensors in bytes."""
        return sum(tensor_bytes(one.dtype, one.shape) for one in self.tensors)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.head) + self.data_size


class ConvertedSource(Source, Generic[T]):
    """A checkpoint whose config, index, tokenizer and shards are made from files in another format.

    Headers follow from shapes, so that a plan converts nothing, and `read` converts the range that is asked for alone.
    """

    @property
    @abstractmethod
    def texts(self) -> Mapping[str, str]:
        """The small text files that are made, by name, with the index of several shards."""

    @property
    @abstractmethod
    def shards(self) -> tuple[Shard[T], ...]:
        """The safetensors files, in order."""

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The dtype of the weights, as torch names it."""

    @abstractmethod
    def blocks(self, tensors: Sequence[T]) -> Iterator[memoryview]:
        """Yields the data of tensors in order, in pieces."""

    @abstractmethod
    def part(self, tensor: T, start: int, stop: int) -> bytes:
        """Bytes start .. stop - 1 of a tensor."""

    def tokenizer(self) -> GeneratedFile | None:
        """The tokenizer.json that is made; None where there is none to make."""
        return None

    def in_dtype(self, dtype: str) -> ConvertedSource[T]:
        """The checkpoint in the dtype in which a model computes, or itself where its weights are not encoded.

        dtype: as torch names it, or auto for its own.
        """
        return self

    def index(self) -> dict[str, str]:
        """The text of the index by its name; empty for one shard."""
        if len(self.shards) == 1:
            return {}
        places = {one.name: shard.name for shard in self.shards for one in shard.tensors}
        return {"model.safetensors.index.json": index_text(sum(shard.data_size for shard in self.shards), places)}

    def made_files(self) -> list[SourceFile]:
        """The entries of all files that are made, for `files`."""
        found = [SourceFile(name, len(text.encode())) for name, text in self.texts.items()]
        return found + [SourceFile(item.name, item.size) for item in self.generated_files()]

    def text(self, name: str) -> str | None:
        return self.texts.get(name)

    def header(self, name: str) -> Header:
        shard = self._shard(name)
        return parse_header(BytesIO(shard.head), shard.size, name)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes start .. stop - 1 of a file, of which no more than these is converted. name: as in `files`."""
        if name in self.texts:
            return self.texts[name].encode()[start:stop]
        if all(shard.name != name for shard in self.shards):
            return super().read(name, start, stop)
        shard = self._shard(name)
        at, found = len(shard.head), [shard.head[start:stop]]
        for tensor in shard.tensors:
            size = tensor_bytes(tensor.dtype, tensor.shape)
            first, last = max(start - at, 0), min(stop - at, size)
            if first < last:
                found.append(self.part(tensor, first, last))
            at += size
        if stop > at:
            raise BadSource(f"{name} of {self.reference} ends before byte {stop}; download it again")
        return b"".join(found)

    def tensor_names(self) -> tuple[str, ...] | None:
        return tuple(one.name for shard in self.shards for one in shard.tensors)

    def generated_texts(self) -> tuple[str, ...]:
        return tuple(self.texts)

    def generated_files(self) -> tuple[GeneratedFile, ...]:
        made = [
            GeneratedFile(shard.name, shard.size, partial(self._write, shard), partial(self._stream, shard))
            for shard in self.shards
        ]
        tokenizer = self.tokenizer()
        return tuple(made) if tokenizer is None else (*made, tokenizer)

    def _shard(self, name: str) -> Shard[T]:
        return next(shard for shard in self.shards if shard.name == name)

    def _write(self, shard: Shard[T], target: Path, advance: Callable[[int], None]) -> None:
        def counted() -> Iterator[memoryview]:
            for block in self.blocks(shard.tensors):
                yield block
                advance(len(block))

        write_stream(target, shard.head, counted())

    def _stream(self, shard: Shard[T]) -> Iterator[bytes | memoryview]:
        yield shard.head
        yield from self.blocks(shard.tensors)
