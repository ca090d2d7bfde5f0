"""The texts that a model reads, as tokens, and its tokenizer."""

import glob
import hashlib
import os
import re
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..engines.llamacpp import LlamaCppProcess
from ..engines.llamacpp_program import Load
from ..engines.servers.protocol import prefix_of
from ..environment import require
from ..errors import BadSource, UsageError
from ..formats.texts import TextLike, text_or_path
from ..loader import load_tokenizer
from ..rope.lengths import format_tokens
from .cases import EvaluationSizes


class Tokenizer(Protocol):
    """The tokenizer of a model."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that it puts before every text."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without the prefix."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""


@dataclass(frozen=True, eq=False)
class TextDocument:
    """A text. name: of its file, or a number in a dataset. ids: its tokens, without a prefix,
    int32.
    """

    name: str
    ids: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Texts:
    """All texts of an evaluation. documents: at least one. notes: on texts that measure little."""

    documents: tuple[TextDocument, ...]
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens before every sequence."""
        return self.tokenizer.prefix

    def window(self, document: int, end: int, length: int) -> NDArray[np.int32]:
        """A sequence of `length` tokens: the prefix, and the tokens of a document that end before
        index `end`.
        """
        tokens = self.documents[document].ids[end - (length - len(self.prefix)) : end]
        return np.concatenate([np.array(self.prefix, np.int32), tokens])

    @cached_property
    def sha256(self) -> str:
        """sha256 over the tokens of all documents."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(
                len(document.ids).to_bytes(8, "little") + document.ids.astype("<i4").tobytes()
            )
        return digest.hexdigest()


MOST = 1000
"""Documents that are taken from the beginning of a dataset."""
TRUST = "HF_DATASETS_TRUST_REMOTE_CODE"


def read_dataset(name: str, field: str) -> list[tuple[str, str]]:
    """Names and contents of the first rows of a dataset, which are streamed.

    name: owner/name, owner/name:SPLIT (by default test), or owner/name:CONFIG:SPLIT. field: the
    column with the text. Raises BadSource where the dataset does not load or does not have the
    column.
    """
    require("datasets", "--dataset")
    import datasets

    repository, *parts = name.split(":")
    if len(parts) > 2:
        raise UsageError(
            f"--dataset {name} is not understood; write it like owner/name:CONFIG:SPLIT"
        )
    split = parts[-1] if parts else "test"
    if (
        getattr(datasets.config, TRUST, None) is not True
    ):  # datasets 3 asks on stdin, unless the environment says yes
        setattr(datasets.config, TRUST, False)
    try:
        rows = datasets.load_dataset(
            repository, parts[0] if len(parts) == 2 else None, split=split, streaming=True
        )
        texts = [row[field] for row in rows.take(MOST)]
    except KeyError:
        raise BadSource(
            f"{name} has no column {field!r}; name the one with the text with --field"
        ) from None
    except (OSError, ValueError, RuntimeError) as problem:
        lines = str(problem).splitlines() or [type(problem).__name__]
        raise BadSource(
            f"--dataset {name} does not load ({lines[0]}); write it as owner/name:CONFIG:SPLIT, or"
            " give --text"
        ) from None
    pairs = [
        (f"{repository} {n}", text)
        for n, text in enumerate(texts)
        if isinstance(text, str) and text.strip()
    ]
    if not pairs:
        raise BadSource(f"{name} has no text in {field!r}; name another column with --field")
    return pairs


SEEN = 1 << 20
"""Characters that are tested."""
REPETITIVE = 0.12
"""Share of its size to which zlib compresses a text that repeats itself; prose has 0.35 to 0.45,
source code 0.25.
"""
ENCODED = re.compile(r"[A-Za-z0-9+/=_-]{60,}")
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
LEAST = 2000
"""Characters below which a text is not tested."""


def remark(name: str, text: str) -> str:
    """A warning about the losses of a text; empty for an ordinary one. Raises BadSource for a
    binary file.
    """
    part = text[:SEEN]
    if len(CONTROL.findall(part)) > len(part) / 100:
        raise BadSource(f"{name} is a binary file; give another --text")
    if len(part) < LEAST:
        return ""
    if sum(map(len, ENCODED.findall(part))) > len(part) / 2:
        return (
            f"{name} looks encoded (base64 or hexadecimal), so its losses are not those of"
            " language."
        )
    data = part.encode("utf-8", "surrogatepass")
    ratio = len(zlib.compress(data)) / len(data)
    if ratio < REPETITIVE:
        return (
            f"{name} repeats itself (zlib compresses it to {100 * ratio:.0f} %), so losses beyond"
            " the trained context are lower than on other texts."
        )
    return ""


MOST_BYTES = 256 << 20
"""Most characters of one file, some fifty million tokens."""


def read_files(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names and contents of text files.

    names: paths, patterns such as essays/*.txt, or - for standard input. Raises BadSource for a
    file that is not UTF-8, and UsageError where no name is given or a pattern matches no file.
    """
    contents: list[tuple[str, bytes]] = []
    for name in names:
        if name == "-":
            contents.append(("standard input", sys.stdin.buffer.read(MOST_BYTES + 1)))
            continue
        paths = (
            [Path(name)]
            if Path(name).is_file()
            else sorted(map(Path, glob.glob(name, recursive=True)))
        )
        files = [path for path in paths if path.is_file()]
        if not files:
            raise UsageError(
                f"--text {name} names no file; give a text file, or a pattern in quotes such as"
                " 'essays/*.txt'"
            )
        for path in files:
            try:
                with path.open("rb") as file:
                    contents.append((str(path), file.read(MOST_BYTES + 1)))
            except OSError as problem:
                raise BadSource(
                    f"{path} cannot be read ({problem.strerror}); give another --text"
                ) from None
    if not contents:
        raise UsageError("no text is given; name a file with --text (a book, or several essays)")
    return [(name, _decoded(data, name)) for name, data in contents]


def gather_texts(values: TextLike | Iterable[TextLike]) -> list[tuple[str, str]]:
    """Return the names and contents of texts that are passed in Python.

    Args:
        values: One of these, or several: a path, a pattern such as `"essays/*.txt"`, or the text
            itself, as `text_or_path` tells them apart. `"-"` is standard input.

    Returns:
        The name and the content of each; a text without a file is called "text", with its number
        where there are several.

    Raises:
        UsageError: For a path or pattern that names no file, and for a value that is not a text.
        BadSource: For a file that is not UTF-8.
    """
    if isinstance(values, str | bytes | os.PathLike) or not isinstance(values, Iterable):
        several: list[object] = [values]
    else:
        several = list(values)
    gathered: list[tuple[str, str]] = []
    for number, value in enumerate(several, 1):
        found = text_or_path(value)
        if isinstance(found, str):
            name = f"text {number}" if len(several) > 1 else "text"
            gathered.append((name, found))
        else:
            gathered += read_files([str(found)])
    return gathered or read_files([])


def tokenized(files: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> Texts:
    """Texts as tokens. files: names and contents. Raises BadSource for a binary or empty one."""
    documents = []
    notes = []
    for name, text in files:
        notes.append(remark(name, text))
        ids = np.array(tokenizer.encode(text), np.int32)
        if len(ids) < 2:
            raise BadSource(f"{name} has {len(ids)} tokens; give a --text with more")
        documents.append(TextDocument(name, ids))
    return Texts(tuple(documents), tokenizer, tuple(filter(None, notes)))


def _decoded(data: bytes, name: str) -> str:
    if len(data) > MOST_BYTES:
        raise BadSource(f"{name} has more than {MOST_BYTES:,} bytes; give a part of it as --text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadSource(
            f"{name} is not text in UTF-8; convert it, or give another --text"
        ) from None


def long_enough(texts: Texts, length: int) -> list[int]:
    """Numbers of the documents that fill a sequence of `length` tokens. Raises BadSource where
    there is none.
    """
    sizes = [len(document.ids) + len(texts.prefix) for document in texts.documents]
    numbers = [number for number, size in enumerate(sizes) if size >= length]
    if not numbers:
        most = max(sizes)
        raise BadSource(
            f"the longest text has {most:,} tokens, and sequences of {length:,} are asked for; give"
            f" a longer --text, or --lengths up to {format_tokens(most)}"
        )
    return numbers


def window_ends(texts: Texts, sizes: EvaluationSizes, apart: int) -> list[tuple[int, int]]:
    """(document, end) of windows of the longest length, in turn from all documents that are long
    enough.

    In each document they are spread evenly, and end at least `apart` tokens from each other; so
    there are fewer than `sizes.windows` where the texts are short.
    """
    room = sizes.longest - len(texts.prefix)
    documents = long_enough(texts, sizes.longest)
    ends: dict[int, list[int]] = {}
    for place, number in enumerate(documents):
        share = sizes.windows // len(documents) + (place < sizes.windows % len(documents))
        size = len(texts.documents[number].ids)
        count = min(share, 1 + (size - room) // apart)
        step = (size - room) / max(count - 1, 1)
        ends[number] = [size - int(index * step) for index in reversed(range(count))]
    most = max(map(len, ends.values()))
    return [
        (number, places[turn])
        for turn in range(most)
        for number, places in ends.items()
        if turn < len(places)
    ]


class CheckpointTokenizer:
    """The tokenizer of a checkpoint. trust: run its tokenization file. Raises BadSource as
    `load_tokenizer` does.
    """

    def __init__(self, folder: Path, trust: bool = False) -> None:
        self.tokenizer = load_tokenizer(folder, trust)
        with_special, plain = (
            self.tokenizer("a", add_special_tokens=added).input_ids for added in (True, False)
        )
        self.prefix = prefix_of(with_special, plain)

    def encode(self, text: str) -> list[int]:
        return [
            int(token)
            for token in self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        ]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))


def gguf_tokenizer(path: Path) -> LlamaCppProcess:
    """The tokenizer of a file, when it is entered. Raises RopeconvError where llama.cpp cannot load
    it.
    """
    return LlamaCppProcess(Load(path=str(path), vocabulary_only=True))
