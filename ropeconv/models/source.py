"""Source, the interface to a checkpoint wherever it is, and Origin, the part that GGUF shares."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from ..environment import Requirement
from ..errors import BadSource, UnknownModelType
from ..formats import jsontext
from ..formats.disk import Advance, FileIdentity, copy_file, sha256, text_digest, weights_digest
from ..formats.files import open_regular, read_text
from ..formats.jsontext import parse
from ..formats.safetensors import (
    INDEX,
    MOST_TENSORS,
    Header,
    Tensor,
    read_header,
    safe_name,
    shards,
    tensors,
)
from ..rope.errors import RopeconvError, shown
from ..rope.features import find_hook
from .config import detect
from .family import Family
from .reference import Modelfile
from .schema import ADVICE_FOR_IMAGE_MODELS, Config

ADAPTER = "adapter_config.json"
MOST_NAMED = 8


def no_config_error(reference: str, names: Iterable[str], adapter: str | None) -> BadSource:
    """Return the error for a source without a config.json, which says what it is instead.

    Args:
        reference: The source as the user named it.
        names: The names of its files.
        adapter: The text of adapter_config.json, None without.
    """
    names = set(names)
    if "model_index.json" in names:
        return BadSource(f"{reference} is a pipeline of diffusers; {ADVICE_FOR_IMAGE_MODELS}")
    if adapter is not None:
        base = parse(adapter, ADAPTER).get("base_model_name_or_path")
        whose = shown(base) if base else "which it does not name"
        return BadSource(
            f"{reference} is a PEFT adapter, which has no RoPE settings; bake its base model"
            f" ({whose}), and load the adapter on the result"
        )

    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if ggufs:
        paths = ", ".join(f"{reference}/{name}" for name in ggufs[:MOST_NAMED])
        if len(ggufs) > MOST_NAMED:
            paths += f" and {len(ggufs) - MOST_NAMED} more"
        return BadSource(
            f"{reference} contains GGUF files but no config.json; pass one of them: {paths}"
        )
    return BadSource(
        f"{reference} has no config.json, so it is not a checkpoint; give another folder or id"
    )


SINGLE = "model.safetensors"
OTHER_WEIGHTS = (
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "*.gguf",
    "*.tflite",
    "*.ot",
    "original/*",
    "onnx/*",
    "openvino/*",
    "coreml/*",
    "*.bin.index.json",
    "consolidated*.safetensors",
)


def is_weights(name: str) -> bool:
    """Return whether a file of a checkpoint holds weights, by its name."""
    return any(fnmatch(name, pattern) for pattern in ("*.safetensors", *OTHER_WEIGHTS))


RECEIPT = "ropeconv.json"
CARD = "README.md"
"""The model card of an output."""
SOURCE_CARD = "README-source.md"
"""The card of the source beside it."""
MOST_FILES = 100_000
"""Files of a folder or repository; published checkpoints have up to some hundred."""
LARGE = 64 << 20
"""Bytes of a file from which on `identity` samples it; tokenizers have up to some 30 million."""
PIECE = 1 << 20
"""Bytes of a file that `stream` reads at a time."""
MAX_HEADERS = 48 << 20
"""The most bytes of all headers together.

A Kimi K2 in GPTQ, with 276,480 tensors of experts, has 35 million.
"""


@dataclass(frozen=True)
class SourceFile:
    """A file of a checkpoint."""

    name: str
    """Relative to its folder."""

    size: int
    """In bytes."""

    sha256: str | None = None
    """None where knowing it would mean reading the file."""


@dataclass(frozen=True)
class GeneratedFile:
    """A file that a conversion makes."""

    name: str
    """Relative to the folder."""

    size: int
    """In bytes (of tokenizers, roughly)."""

    write: Callable[[Path, Callable[[int], None]], None]
    """Writes it to a path, and calls its second argument with the bytes done."""

    stream: Callable[[], Iterator[bytes | memoryview]] | None = None
    """Yields the same bytes without writing them, None where it cannot."""


class Origin:
    """Where a model is from."""

    name: str
    """The first part of the default name of an output."""

    reference: str
    """How the user named the source."""

    kind: str = "folder"
    """"folder", "hub", "meta", "config", "gguf" or "graph"."""

    commit: str | None = None
    """The commit on the Hub; None for others."""

    treat_as: str = ""
    """The name of the family that the user says the model is of; empty to go by its model_type."""

    modelfile: Modelfile | None = None
    """The Modelfile that the user named, None for other sources."""

    as_draft: bool = False
    """Whether a draft model is expected, which is refused as a model of its own."""

    _derived: Family | None = None
    """The family that was derived from the class of the model; None where that was not needed."""

    @property
    def family_words(self) -> tuple[str, ...]:
        """The option with the family that the user says, for a command on this source."""
        return ("--family", self.treat_as) if self.treat_as else ()

    @property
    def derived(self) -> str:
        """The class that was run to derive its family; empty for a family that was described."""
        return self._derived.derived if self._derived is not None else ""

    @cached_property
    def identity(self) -> str:
        """A digest that identifies the model, the same for `eval`, `tune`, `run` and `apply`.

        On the Hub by repository and commit. Local files count by their contents: whole for configs,
        tokenizers and code, by `weights_digest` for weights. Cards (*.md) do not count.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, str | None]:
        """Reference, kind and commit as JSON-ready data."""
        return {"reference": self.reference, "kind": self.kind, "commit": self.commit}

    def identities(self, unread: Collection[str] = ()) -> Mapping[Path, FileIdentity | None]:
        """Return the files of this disk that it is read from, as they were before that.

        Files in the Hub's cache are not among them.

        Args:
            unread: Names of files that are not read.
        """
        return {}


class Source(Origin, ABC):
    """A checkpoint in Hugging Face's layout, or one that is presented as such.

    It is only read, never written to.
    """

    in_float32: "Source | None" = None
    """The same checkpoint without quantised weights, once `dequantised` was asked for it: several
    outputs have it in common, so that its weights are computed once.
    """

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The packages without which its weights and generated files cannot be read."""
        return ()

    @abstractmethod
    def files(self) -> tuple[SourceFile, ...]:
        """Return all files of the checkpoint, sorted by name."""

    @abstractmethod
    def path(self, name: str) -> Path:
        """Return the local path of a file, which is fetched first where it is not there."""

    def local(self, name: str) -> Path | None:
        """Return the path of a file that is on this disk.

        None for one that is not fetched yet, or that is computed from other files.
        """
        return self.path(name)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes start .. stop - 1 of a file, which is not fetched as a whole.

        Args:
            name: As in `files`.
            start: The first byte.
            stop: The byte behind the last.

        Raises:
            BadSource: Where the file is shorter.
        """
        with open_regular(self.path(name)) as file:
            return read_exactly(file, name, start, stop)

    def stream(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file in pieces; the file is fetched where it is not local."""
        with open_regular(self.path(name)) as file:
            while block := file.read(PIECE):
                yield block

    def text(self, name: str) -> str | None:
        """Return the content of a small text file with its own line ends; None without that file.

        Raises:
            BadSource: If it is not UTF-8, not a regular file, or longer than any such file.
        """
        if all(file.name != name for file in self.files()):
            return None
        return read_text(self.path(name), name)

    def config(self) -> Config:
        """Return the content of config.json.

        Raises:
            BadSource: Where it is absent or not a JSON object.
        """
        text = self.text("config.json")
        if text is None:
            names = [file.name for file in self.files()]
            raise no_config_error(self.reference, names, self.text(ADAPTER))
        return jsontext.parse(text, "config.json")

    @cached_property
    def identity(self) -> str:
        """A digest that differs between checkpoints that compute different things.

        Documents do not matter. Small files are hashed, and of large ones some places in each
        tensor: hashing 100 GB takes minutes.
        """
        weights = set(self.weights())
        digests = list[str]()
        copied, _ = self.files_to_copy()
        for file in copied:
            if file.name.endswith(".md"):
                continue

            path = self.path(file.name)
            is_small = file.size <= LARGE
            if file.name not in weights and is_small:
                digests.append(f"{file.name} {sha256(path)}")
                continue

            # the first byte and the size of each tensor; none in a file of another format
            header = Header({}, {}, 0)
            if file.name.endswith(".safetensors"):
                with suppress(BadSource):  # of a damaged file, which is reported where it is read
                    header = self.header(file.name)
            places = []
            for tensor in header.tensors.values():
                first_byte = header.data_start + tensor.start
                places.append((first_byte, tensor.stop - tensor.start))
            digests.append(f"{file.name} {weights_digest(path, header.data_start, places)}")
        return text_digest(*digests)

    @property
    def family(self) -> Family:
        """The family of models that the config.json belongs to, such as Llama's.

        It is found by the model_type, or is the family that the user names with --family. If no
        family has the model_type, an optional feature of ropeconv can run the model's own class and
        derive a family from it.

        Raises:
            UnknownModelType: No family has the model_type, and none can be derived.
            BadSource: The config is wrong in another way.
        """
        family_of_user = self.treat_as  # the value of --family; empty without it
        if self._derived is not None and not family_of_user:
            return self._derived
        try:
            return detect(self.config(), family_of_user, self._shapes)
        except UnknownModelType as error:
            unknown_type_error = error

        # run the class of the model, if the feature for it is installed
        derive_family = find_hook("derive_family")
        if derive_family is None:
            raise unknown_type_error
        try:
            self._derived = derive_family(self)
        except BadSource as error_of_class:
            # the first message has advice too: a family that may be passed with --family
            raise UnknownModelType(f"{unknown_type_error}; {error_of_class}") from None
        if self._derived is None:  # the checkpoint has no code of a class
            raise unknown_type_error
        return self._derived

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors by name, from headers; empty ones if only the index is read."""
        try:
            if self.kind == "folder" and self.weights():
                return {name: tensor.shape for name, tensor in self.tensors.items()}
            return dict.fromkeys(self.tensor_names() or (), ())
        except RopeconvError:
            return {}

    def weights(self) -> tuple[str, ...]:
        """Return the names of the model's safetensors files; empty where it has none.

        Raises:
            BadSource: Where some are missing.
        """
        # model.safetensors.index.json names the shards; without it there is one file, or none
        names = {file.name for file in self.files()}
        index = self.text(INDEX)
        if index is None:
            return (SINGLE,) if SINGLE in names else ()
        files = shards(index)
        missing = [name for name in files if name not in names]
        if missing:
            raise BadSource(
                f"{INDEX} names {missing[0]}, which is missing; download the checkpoint again"
            )
        return files

    @property
    def has_stored_weights(self) -> bool:
        """Whether files on this disk have the weights in the form in which they are read.

        Those on the Hub are elsewhere, and those of Meta's layout, or quantised ones, are computed.
        """
        if self.generated_files():
            return False
        return all(self.local(name) is not None for name in self.weights())

    def header(self, name: str) -> Header:
        """Return the header of a safetensors file, which is fetched where it is not local."""
        return read_header(self.path(name))

    def _each_header(self, names: Sequence[str]) -> Iterator[tuple[str, Header]]:
        """Yield names and headers in order."""
        for name in names:
            yield name, self.header(name)

    @cached_property
    def headers(self) -> dict[str, Header]:
        """Return the headers of the model's safetensors files, by file name.

        Raises:
            BadSource: Where they are too large.
        """
        headers = {}
        size = 0
        count = 0
        for name, header in self._each_header(self.weights()):
            headers[name] = header
            size += header.data_start
            count += len(header.tensors)
            # each header has a limit, and a thousand of them would still fill the memory
            if size > MAX_HEADERS or count > MOST_TENSORS:
                raise BadSource(
                    f"the headers of {self.reference} have more than {MAX_HEADERS:,} bytes or"
                    f" {MOST_TENSORS:,} tensors; it is damaged"
                )

        return headers

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the model by name, from the headers."""
        tensors: dict[str, Tensor] = {}
        for header in self.headers.values():
            tensors |= header.tensors
        return tensors

    @property
    def usual_dtype(self) -> str:
        """The dtype of most tensors, as safetensors names it."""
        dtypes = [tensor.dtype for tensor in self.tensors.values()]
        return max(set(dtypes), key=dtypes.count)

    def files_to_copy(
        self, all_files: bool = False
    ) -> tuple[tuple[SourceFile, ...], tuple[SourceFile, ...]]:
        """Return the files to copy into an output, and those to leave out.

        The same weights in other formats are left out, unless `all_files`: many repositories have
        pytorch_model.bin beside model.safetensors, with the same numbers.

        Raises:
            BadSource: For a file name that is not inside the checkpoint.
        """
        copied: list[SourceFile] = []
        left_out: list[SourceFile] = []
        weights = set(self.weights())

        for file in self.files():
            if not safe_name(file.name):
                raise BadSource(
                    f"{self.reference} has a file named {shown(file.name)}, outside its folder; do"
                    " not trust it"
                )
            if file.name == RECEIPT:  # an output has a receipt of its own
                continue
            if file.name in weights or not weights or all_files:
                copied.append(file)
                continue

            # beside the weights in safetensors
            is_other_format = any(fnmatch(file.name, pattern) for pattern in OTHER_WEIGHTS)
            if is_other_format:
                left_out.append(file)
            else:
                copied.append(file)
        return tuple(copied), tuple(left_out)

    def generated_texts(self) -> tuple[str, ...]:
        """Return the names of small text files that `text` generates and `path` does not have."""
        return ()

    def generated_files(self) -> tuple[GeneratedFile, ...]:
        """Large files that a conversion has to make; empty for a checkpoint in the HF layout."""
        return ()

    def is_generated(self, name: str) -> bool:
        """Whether a conversion makes the file, so that only `copy` gives it."""
        if name in self.generated_texts():
            return True
        return any(item.name == name for item in self.generated_files())

    def copy(self, name: str, target: Path, advance: Advance = lambda done: None) -> None:
        """Write a file to a path: a copy, or what a conversion makes.

        Args:
            name: As in `files`.
            target: The path.
            advance: Called with the bytes done since the last call.

        Raises:
            OSError: It cannot be written.
        """
        for file in self.generated_files():
            if file.name == name:
                file.write(target, advance)
                return
        if name in self.generated_texts():
            target.write_bytes((self.text(name) or "").encode())
        else:
            copy_file(self.path(name), target, advance)

    def conversion_notes(self) -> tuple[str, ...]:
        """Return sentences on what a conversion cannot keep."""
        return ()

    def tensor_names(self) -> tuple[str, ...] | None:
        """Return the names of all tensors, from the index.

        None without an index, since the names would then require fetching the weights.
        """
        index = self.text(INDEX)
        if index is None:
            return None
        return tensors(index)


def read_exactly(file: BinaryIO, name: str, start: int, stop: int) -> bytes:
    """Return bytes start .. stop - 1 of an open file.

    Args:
        file: The file.
        name: Its name, for the message.
        start: The first byte.
        stop: The byte behind the last.

    Raises:
        BadSource: Where it is shorter.
    """
    file.seek(start)
    content = file.read(stop - start)
    if len(content) != stop - start:
        raise BadSource(f"{name} ends before byte {stop}; download it again")
    return content
