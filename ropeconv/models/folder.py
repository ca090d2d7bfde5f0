"""FolderSource, a checkpoint folder on disk, and ConfigSource, a config.json without weights."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import BadSource
from ..formats.disk import FileIdentity, identity, write_blocks
from ..formats.files import check_regular
from ..formats.kind import REPAIRS, UNCLEAR_KINDS, WORDS, kind_of, refusal
from ..formats.safetensors import (
    Header,
    header_bytes,
    index_text,
    parse_header,
    read_header,
    safe_name,
    tensor_bytes,
)
from ..rope.errors import shown
from .schema import ADVICE_FOR_IMAGE_MODELS
from .source import MOST_FILES, GeneratedFile, Source, SourceFile

FOLLOW = "ROPECONV_FOLLOW_LINKS"
DENOISER = re.compile(
    r"(model\.diffusion_model\.)?((double|single)_(stream_)?blocks|transformer_blocks|joint_blocks|input_blocks)\.0\."
    r"|(model\.diffusion_model\.)?(patch_embedding|img_in|patch_embed)\."
)
"""Tensors of Flux, HunyuanVideo, Wan, CogVideoX and Stable Diffusion, as ComfyUI loads them."""


WEIGHT_FILE_KINDS = ("safetensors", "torch", "pickle")
"""Kinds of files that have weights and say nothing on the RoPE."""


def check_link(path: Path, root: Path) -> None:
    """Refuse a link out of a checkpoint: an output would hold a copy, and may be published.

    A downloaded folder may have `tokenizer.json -> ~/.ssh/id_ed25519`. The Hub's cache has links
    too: `models--owner--name/snapshots/COMMIT/file` leads into `models--owner--name/blobs`.

    Args:
        path: The path of the file.
        root: The folder of the checkpoint, which may be a link itself.

    Raises:
        BadSource: For a link that leads outside of the folder, and of the cache entry that the
            folder is in.
    """
    if os.environ.get(FOLLOW) == "1":
        return
    folder = root.resolve()
    target = path.resolve()

    # the folder, and the blobs of a cache entry where the folder, or one above it, is a commit
    allowed = {folder}
    for place in (folder, *folder.parents):
        model = place.parent.parent
        is_commit = place.parent.name == "snapshots" and model.name.startswith("models--")
        if is_commit:
            allowed.add(model / "blobs")
    if allowed.isdisjoint(target.parents):
        raise BadSource(
            f"{path} leads to {target}, outside the checkpoint; replace the link with the file, or"
            f" set {FOLLOW}=1 if you made that link"
        )


class FolderSource(Source):
    """A folder with config.json and safetensors; hidden files and folders in it are ignored.

    Args:
        root: The folder.
        reference: How messages name it, by default its path.
        follow: Links may lead outside, as they do in a folder that ropeconv made of the files of a
            source.
    """

    def __init__(self, root: Path, reference: str | None = None, follow: bool = False) -> None:
        self.root = root
        self.follow = follow
        self.reference = reference or str(root)
        folder = root.resolve()
        self.name = folder.name
        # in the cache of the Hub: models--OWNER--NAME/snapshots/COMMIT
        model = folder.parent.parent.name
        if folder.parent.name == "snapshots" and model.startswith("models--"):
            self.name = model.rpartition("--")[2]
        self._seen: dict[str, FileIdentity | None] = {}

    @cached_property
    def _files(self) -> tuple[SourceFile, ...]:
        """The files, listed once.

        `_seen` gets the inode, size and time of each, by which a later change is noticed.
        """
        files = []
        for name in self._names():
            path = self.root / name
            if not path.exists():  # a broken link
                continue
            if not self.follow:  # else it is a folder that ropeconv made, of links to a source
                check_link(path, self.root)
            status = path.stat()
            check_regular(status.st_mode, path)  # reading a FIFO would wait for ever
            files.append(SourceFile(name, status.st_size))
            self._seen[name] = identity(path)
            if len(files) > MOST_FILES:
                raise BadSource(
                    f"{self.reference} has more than {MOST_FILES:,} files; give the folder of one"
                    " checkpoint"
                )

        return tuple(sorted(files, key=lambda file: file.name))

    def _names(self) -> Iterator[str]:
        """Yield the names of the files that are not hidden. Linked folders are not entered."""
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                if not name.startswith("."):
                    yield Path(folder, name).relative_to(self.root).as_posix()

    def files(self) -> tuple[SourceFile, ...]:
        """Return all files, sorted by name.

        Raises:
            BadSource: For links that lead outside, and for FIFOs and devices.
        """
        return self._files

    def path(self, name: str) -> Path:
        """Return the local path of a file.

        Raises:
            BadSource: For a name or a link that leads outside the folder.
        """
        if not safe_name(name):
            raise BadSource(
                f"{self.reference} has no file {shown(name)}, outside its folder; do not trust this"
                " checkpoint"
            )
        path = self.root / name
        # only a folder that ropeconv made may have links to files elsewhere: those of its source
        may_lead_outside = self.follow
        if not may_lead_outside:
            check_link(path, self.root)
        return path

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        left_out = set(unread)
        return {
            self.root / file.name: self._seen[file.name]
            for file in self._files
            if file.name not in left_out
        }

    def tensor_names(self) -> tuple[str, ...] | None:
        """Return the names of all tensors, from the headers of all shards, which are checked."""
        names = list[str]()
        for header in self.headers.values():
            names += header.tensors
        return tuple(names)


class ConfigSource(Source):
    """A config.json without weights: only the config is planned and written."""

    kind = "config"

    def __init__(self, file: Path) -> None:
        """Open a config.json, which need not be in a folder with weights.

        Raises:
            BadSource: The first bytes of the file show that it is not JSON.
        """
        self.file = file
        self.reference = str(file)
        self.name = file.stem
        if file.name == "config.json":
            self.name = file.resolve().parent.name

        # weights of an image model, the most frequent mistake
        kind = kind_of(file)  # by the first bytes, such as "json" or "safetensors"
        if kind == "safetensors":
            tensors = read_header(file).tensors
            if any(DENOISER.match(name) for name in tensors):
                raise BadSource(
                    f"{file} has the weights of an image or video model; {ADVICE_FOR_IMAGE_MODELS}"
                )

        # any other file; an empty or damaged .json is refused later, by the JSON reader, which says
        # where the damage is
        may_be_damaged_json = file.suffix == ".json" and kind in UNCLEAR_KINDS
        if kind != "json" and not may_be_damaged_json:
            raise BadSource(_not_a_config(file))

        # the inode, size and time of the file: if they change later, the file has changed
        self._identities = {file: identity(file)}

    def files(self) -> tuple[SourceFile, ...]:
        return (SourceFile("config.json", self.file.stat().st_size),)

    def path(self, name: str) -> Path:
        return self.file

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        return self._identities


def _not_a_config(file: Path) -> str:
    """Return why a file is not a config.json, by its first bytes, and what to give instead."""
    kind = kind_of(file)
    kind_in_words = WORDS[kind]  # e.g. "a safetensors file"

    # weights, which say nothing on the RoPE
    if kind in WEIGHT_FILE_KINDS:
        # params.json is the config in Meta's layout
        names = ("config.json", "params.json")
        if any(file.with_name(name).is_file() for name in names):
            return f"{file} is only the weights of a checkpoint; give its folder, {file.parent}"
        return (
            f"{file} is {kind_in_words} without a config.json beside it, so its RoPE is not known;"
            " give the folder of the checkpoint or its id on the Hub"
        )

    # kinds with advice of their own, such as a ZIP archive: "unpack it, ..."
    if kind in REPAIRS:
        return refusal(file, "a config.json")
    return f"{file} is {kind_in_words} and not a config.json; give a checkpoint folder or a Hub id"


@dataclass(frozen=True)
class ConvertedTensor:
    """A tensor that a conversion makes."""

    name: str
    dtype: str
    """As safetensors names it."""

    shape: tuple[int, ...]


T = TypeVar("T", bound=ConvertedTensor)


@dataclass(frozen=True)
class ConvertedShard(Generic[T]):
    """One safetensors file that a conversion makes."""

    name: str
    tensors: tuple[T, ...]
    """In order."""

    @cached_property
    def head(self) -> bytes:
        """The bytes of its header, which depend only on names, dtypes and shapes."""
        shapes = [(tensor.name, tensor.dtype, tensor.shape) for tensor in self.tensors]
        return header_bytes(shapes, {"format": "pt"})

    @property
    def data_size(self) -> int:
        """Size of all tensors in bytes."""
        return sum(tensor_bytes(tensor.dtype, tensor.shape) for tensor in self.tensors)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.head) + self.data_size


SHARD_BYTES = 5_000_000_000
"""Bytes of data per file, as in checkpoints that transformers writes for the Hub."""


def in_shards(tensors: Iterable[T], limit: int = SHARD_BYTES) -> tuple[ConvertedShard[T], ...]:
    """Divide tensors, in order, into files of at most `limit` bytes of data each.

    A tensor that is larger has a file of its own. The files have the names that transformers
    writes, model-00001-of-00003.safetensors.
    """
    group = list[T]()
    groups = [group]
    filled = 0
    for tensor in tensors:
        size = tensor_bytes(tensor.dtype, tensor.shape)
        if group and filled + size > limit:
            group = []
            groups.append(group)
            filled = 0
        group.append(tensor)
        filled += size

    count = len(groups)
    names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    if count == 1:
        names = ["model.safetensors"]
    return tuple(
        ConvertedShard(name, tuple(group)) for name, group in zip(names, groups, strict=True)
    )


class ConvertedSource(Source, Generic[T]):
    """A checkpoint whose config, index, tokenizer and shards are made from files in another format.

    Headers follow from shapes, so that a plan converts nothing, and `read` converts only the
    requested range.
    """

    @property
    @abstractmethod
    def texts(self) -> Mapping[str, str]:
        """The small text files that are made, by name, with the index of several shards."""

    @property
    @abstractmethod
    def shards(self) -> tuple[ConvertedShard[T], ...]:
        """The safetensors files, in order."""

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The dtype of the weights, as torch names it."""

    @abstractmethod
    def blocks(self, tensors: Sequence[T]) -> Iterator[memoryview]:
        """Yield the data of tensors in order, in pieces."""

    @abstractmethod
    def part(self, tensor: T, start: int, stop: int) -> bytes:
        """Return the bytes start .. stop - 1 of a tensor."""

    def tokenizer(self) -> GeneratedFile | None:
        """Return the tokenizer.json that is made; None where there is none to make."""
        return None

    def in_dtype(self, dtype: str) -> ConvertedSource[T]:
        """The checkpoint in the dtype in which a model computes; itself if it is not encoded.

        Args:
            dtype: As torch names it, or auto for its own.
        """
        return self

    def index(self) -> dict[str, str]:
        """Return {name of the index: its text}, which is empty for a checkpoint of one shard."""
        if len(self.shards) == 1:
            return {}
        files = {}
        for shard in self.shards:
            for tensor in shard.tensors:
                files[tensor.name] = shard.name
        size = sum(shard.data_size for shard in self.shards)
        return {"model.safetensors.index.json": index_text(size, files)}

    def kept_files(self) -> list[SourceFile]:
        """Return the files that are not made."""
        return []

    @cached_property
    def _files(self) -> tuple[SourceFile, ...]:
        texts = [SourceFile(name, len(text.encode())) for name, text in self.texts.items()]
        generated = [SourceFile(item.name, item.size) for item in self.generated_files()]
        return tuple(sorted([*self.kept_files(), *texts, *generated], key=lambda file: file.name))

    def files(self) -> tuple[SourceFile, ...]:
        return self._files

    def text(self, name: str) -> str | None:
        return self.texts.get(name)

    def header(self, name: str) -> Header:
        shard = self._shard(name)
        return parse_header(BytesIO(shard.head), shard.size, name)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes start .. stop - 1 of a converted file, such as model.safetensors.

        The file is not on the disk: only the tensors that have these bytes are converted.
        """
        if name in self.texts:
            return self.texts[name].encode()[start:stop]
        if all(shard.name != name for shard in self.shards):
            return super().read(name, start, stop)

        # what lies within start .. stop - 1 of the header, and then of each tensor
        shard = self._shard(name)
        parts = [shard.head[start:stop]]
        tensor_start = len(shard.head)
        for tensor in shard.tensors:
            size = tensor_bytes(tensor.dtype, tensor.shape)
            from_byte = max(start - tensor_start, 0)
            to_byte = min(stop - tensor_start, size)
            if from_byte < to_byte:
                parts.append(self.part(tensor, from_byte, to_byte))
            tensor_start += size

        if stop > tensor_start:
            raise BadSource(
                f"{name} of {self.reference} ends before byte {stop}; download it again"
            )
        return b"".join(parts)

    def tensor_names(self) -> tuple[str, ...] | None:
        names = list[str]()
        for shard in self.shards:
            names += [tensor.name for tensor in shard.tensors]
        return tuple(names)

    def generated_texts(self) -> tuple[str, ...]:
        return tuple(self.texts)

    def generated_files(self) -> tuple[GeneratedFile, ...]:
        """Return the files that are made while they are written: the shards, and the tokenizer."""
        files = []
        for shard in self.shards:
            stream = partial(self._stream, shard)
            file = GeneratedFile(
                name=shard.name,
                size=shard.size,
                write=partial(write_blocks, stream),
                stream=stream,
            )
            files.append(file)
        tokenizer = self.tokenizer()
        if tokenizer is not None:
            files.append(tokenizer)
        return tuple(files)

    def _shard(self, name: str) -> ConvertedShard[T]:
        """Return the shard of that name."""
        return next(shard for shard in self.shards if shard.name == name)

    def _stream(self, shard: ConvertedShard[T]) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a shard, in pieces."""
        yield shard.head
        yield from self.blocks(shard.tensors)
