"""One view on a checkpoint, wherever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

from ..errors import BadSource
from ..families.config import Config
from ..formats import jsontext
from ..formats.index import INDEX, safe_name, shards, tensors
from ..formats.safetensors import Header, Tensor, read_header

SINGLE = "model.safetensors"
OTHER_WEIGHTS = (
    "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.gguf", "*.tflite", "*.ot",
    "original/*", "onnx/*", "openvino/*", "coreml/*", "*.bin.index.json", "consolidated*.safetensors",
)  # fmt: skip
RECEIPT = "ropeconv.json"


@dataclass(frozen=True)
class SourceFile:
    """A file of a checkpoint: its name within, its size in bytes, its sha256 where that is known for free."""

    name: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class GeneratedFile:
    """A file that has to be made: write(target, advance) does it. size in bytes (of tokenizers, roughly)."""

    name: str
    size: int
    write: Callable[[Path, Callable[[int], None]], None]


class Origin:
    """Where a model is from.

    name: what the output is called after. kind: "folder", "hub", "meta", "config" or "gguf". commit: revision on the
    Hub.
    """

    name: str
    reference: str
    kind: str = "folder"
    commit: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Where it is from, JSON-ready."""
        return {"reference": self.reference, "kind": self.kind, "commit": self.commit}


class Source(Origin, ABC):
    """A checkpoint in Hugging Face's layout to read from, or one that can be seen as such. Never written to."""

    @abstractmethod
    def files(self) -> tuple[SourceFile, ...]:
        """Every file, sorted by name."""

    @abstractmethod
    def path(self, name: str) -> Path:
        """A local path with the file's contents, fetched if need be."""

    def text(self, name: str) -> str | None:
        """A small text file, or None when there is none of that name."""
        if all(file.name != name for file in self.files()):
            return None
        try:
            return self.path(name).read_text("utf-8")
        except UnicodeDecodeError:
            raise BadSource(f"{name} is not UTF-8 text; fix it or download it again") from None

    def config(self) -> Config:
        """config.json. Raises BadSource when it is absent or unreadable."""
        text = self.text("config.json")
        if text is None:
            raise BadSource(
                f"{self.reference} has no config.json, so it is not a checkpoint; give another folder or id"
            )
        return jsontext.parse(text, "config.json")

    def weights(self) -> tuple[str, ...]:
        """Names of the safetensors files that hold the model, or none. Raises BadSource when some are missing."""
        names = {file.name for file in self.files()}
        index = self.text(INDEX)
        if index is None:
            return (SINGLE,) if SINGLE in names else ()
        listed = shards(index)
        missing = [name for name in listed if name not in names]
        if missing:
            raise BadSource(f"{INDEX} names {missing[0]}, which is not there; download the checkpoint again")
        return listed

    @cached_property
    def headers(self) -> dict[str, Header]:
        """The header of every safetensors file of the model, which is fetched for it if need be."""
        return {name: read_header(self.path(name)) for name in self.weights()}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the model by name, from the headers."""
        return {name: tensor for header in self.headers.values() for name, tensor in header.tensors.items()}

    def copied_files(self, all_files: bool = False) -> tuple[tuple[SourceFile, ...], tuple[SourceFile, ...]]:
        """Files that go along, and those left behind: the same weights in other formats, unless `all_files`."""
        kept: list[SourceFile] = []
        left: list[SourceFile] = []
        weights = set(self.weights())
        for file in self.files():
            if not safe_name(file.name):
                raise BadSource(f"{self.reference} holds a file named {file.name!r}, outside itself; do not trust it")
            other = file.name not in weights and any(fnmatch(file.name, pattern) for pattern in OTHER_WEIGHTS)
            if file.name == RECEIPT:
                continue
            (left if other and weights and not all_files else kept).append(file)
        return tuple(kept), tuple(left)

    def generated_texts(self) -> tuple[str, ...]:
        """Names of small text files that exist only through `text`."""
        return ()

    def generated_files(self) -> tuple[GeneratedFile, ...]:
        """Files that a conversion makes."""
        return ()

    def tensor_names(self) -> tuple[str, ...] | None:
        """Names of all tensors, from the index; None where there is none and the weights would have to be fetched."""
        index = self.text(INDEX)
        return None if index is None else tensors(index)
