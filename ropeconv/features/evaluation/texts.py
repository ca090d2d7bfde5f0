"""The texts that a model reads, as tokens, and its tokenizer.

`gather_texts`, `read_files` and `read_dataset` give names and contents, `tokenize` makes `Texts` of
them, and `window_ends` chooses windows in these.
"""

import glob
import hashlib
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ropeconv.bake.proof import FEWEST, FEWEST_DOCUMENTS
from ropeconv.engines.engine import prefix_of
from ropeconv.engines.llamacpp import LlamaCppProcess
from ropeconv.engines.llamacpp_program import Load
from ropeconv.environment import require
from ropeconv.errors import BadSource, UsageError
from ropeconv.formats.texts import TextLike, text_or_path
from ropeconv.loader import load_tokenizer
from ropeconv.rope.errors import counted
from ropeconv.rope.lengths import format_tokens

from .cases import EvaluationSizes


class Tokenizer(Protocol):
    """The tokenizer of a model."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that it puts before every text."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without the prefix."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""


@dataclass(frozen=True, eq=False)
class TextDocument:
    """A text."""

    name: str
    """The name of its file, or of its dataset with a number."""

    ids: NDArray[np.int32]
    """Its tokens, without a prefix, int32."""


@dataclass(frozen=True, eq=False)
class Texts:
    """All texts of an evaluation."""

    documents: tuple[TextDocument, ...]
    """The texts; none where each measure has prompts of its own."""

    tokenizer: Tokenizer

    remarks: tuple[str, ...] = ()
    """Sentences on texts that measure little, and on copies that are left out."""

    window_lengths: set[int] = field(default_factory=set)
    """The lengths in tokens of the windows that measures have read; `long_enough` adds to them."""

    @property
    def notes(self) -> list[str]:
        """Sentences for below the tables: the remarks, and which texts were too short to be read.

        The second is known once the measures have made their sequences.
        """
        sentences = list(self.remarks)
        longest = max(self.window_lengths, default=0)
        short = []
        for document in self.documents:
            if len(document.ids) + len(self.prefix) < longest:
                short.append(document.name)
        if short:
            texts = counted(len(self.documents), "text")
            are_shorter = counted(len(short), f"of {texts} is", f"of {texts} are")
            sentences.append(
                f"{are_shorter} shorter than {longest:,} tokens, so no loss is measured on"
                f" {_list_names(short)}."
            )
        return sentences

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens before every sequence."""
        return self.tokenizer.prefix

    def window(self, document: int, end: int, length: int) -> NDArray[np.int32]:
        """Return a sequence: the prefix, and the tokens of a document before index `end`.

        Args:
            document: The number of the document.
            end: The index after the last token.
            length: The length of the sequence in tokens, with the prefix.
        """
        start = end - (length - len(self.prefix))
        tokens = self.documents[document].ids[start:end]
        return np.concatenate([np.array(self.prefix, np.int32), tokens])

    @cached_property
    def sha256(self) -> str:
        """sha256 over the tokens of all documents."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(len(document.ids).to_bytes(8, "little"))
            digest.update(document.ids.astype("<i4").tobytes())
        return digest.hexdigest()


MOST_NAMED = 5
"""Texts that a sentence names; it counts the others."""


def _list_names(names: Sequence[str]) -> str:
    """Return names for a sentence, such as "a.txt, b.txt and 3 more"."""
    listed = ", ".join(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        listed += f" and {len(names) - MOST_NAMED} more"
    return listed


MOST_DOCUMENTS = 1000
"""Documents that are taken from the beginning of a dataset."""
TRUST_SETTING = "HF_DATASETS_TRUST_REMOTE_CODE"
"""The setting of `datasets` that allows to run the code of a repository."""


def read_dataset(name: str, field: str) -> list[tuple[str, str]]:
    """Return names and contents of the first rows of a dataset, which are streamed.

    Args:
        name: owner/name, owner/name:SPLIT (by default test), or owner/name:CONFIG:SPLIT.
        field: The column with the text.

    Raises:
        UsageError: The name is of another form.
        BadSource: The dataset does not load, or does not have the column.
    """
    require("datasets", "--dataset")
    import datasets

    repository, config, split = _parse_dataset(name)
    # datasets 3 has this setting from the environment: True runs the code of a repository, and
    # without a value it asks on stdin. False refuses the code instead of waiting for an answer.
    user_trusts_code = getattr(datasets.config, TRUST_SETTING, None) is True
    if not user_trusts_code:
        setattr(datasets.config, TRUST_SETTING, False)
    try:
        rows = datasets.load_dataset(repository, config, split=split, streaming=True)
        texts = [row[field] for row in rows.take(MOST_DOCUMENTS)]
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

    pairs = []
    for number, text in enumerate(texts):
        if isinstance(text, str) and text.strip():
            pairs.append((f"{repository} {number}", text))
    if not pairs:
        raise BadSource(f"{name} has no text in {field!r}; name another column with --field")
    return pairs


def _parse_dataset(name: str) -> tuple[str, str | None, str]:
    """Return the repository, the configuration and the split of owner/name[:CONFIG][:SPLIT]."""
    repository, *parts = name.split(":")
    if not parts:
        return repository, None, "test"
    if len(parts) == 1:
        return repository, None, parts[0]
    if len(parts) == 2:
        config, split = parts
        return repository, config, split
    raise UsageError(f"--dataset {name} is not understood; write it like owner/name:CONFIG:SPLIT")


TESTED_CHARACTERS = 1 << 20
"""Characters that are tested."""
RATIO_OF_REPETITIVE_TEXT = 0.12
"""Share of its size to which zlib compresses a text that repeats itself.

Prose has 0.35 to 0.45, source code 0.25.
"""
ENCODED_WORD = re.compile(r"[A-Za-z0-9+/=_-]{60,}")
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
FEWEST_TESTED_CHARACTERS = 2000
"""Characters below which a text is not tested."""


def remark(name: str, text: str) -> str:
    """Return a warning about the losses of a text; empty for an ordinary one.

    Such as that it is base64, or repeats itself, which a model predicts unlike prose.

    Args:
        name: The name of the text, for the warning.
        text: Its content.

    Raises:
        BadSource: It is a binary file.
    """
    part = text[:TESTED_CHARACTERS]
    # text has almost no control characters besides tab, line feed and form feed
    if len(CONTROL_CHARACTER.findall(part)) > len(part) / 100:
        raise BadSource(f"{name} is a binary file; give another --text")
    if len(part) < FEWEST_TESTED_CHARACTERS:
        return ""

    # words of 60 characters and more are not language
    encoded = sum(len(word) for word in ENCODED_WORD.findall(part))
    if encoded > len(part) / 2:
        return (
            f"{name} looks encoded (base64 or hexadecimal), so its losses are not those of"
            " language."
        )

    # English prose compresses to about 40 %; a page that is copied many times to a few percent
    data = part.encode("utf-8", "surrogatepass")
    ratio = len(zlib.compress(data)) / len(data)
    if ratio < RATIO_OF_REPETITIVE_TEXT:
        return (
            f"{name} repeats itself (zlib compresses it to {100 * ratio:.0f} %), so losses beyond"
            " the trained context are lower than on other texts."
        )
    return ""


MOST_BYTES = 256 << 20
"""Most characters of one file, some fifty million tokens."""


def read_files(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return names and contents of text files.

    Args:
        names: Paths, patterns such as essays/*.txt, or - for standard input.

    Raises:
        BadSource: A file cannot be read, or is not UTF-8.
        UsageError: No name is given, or a pattern matches no file.
    """
    contents: list[tuple[str, bytes]] = []
    for name in names:
        if name == "-":
            # one byte more than is allowed, by which too much is noticed
            contents.append(("standard input", sys.stdin.buffer.read(MOST_BYTES + 1)))
        else:
            contents += [(str(path), _read_bytes(path)) for path in _matching_files(name)]
    if not contents:
        raise UsageError("no text is given; name a file with --text (a book, or several essays)")
    return [(name, _decode_text(data, name)) for name, data in contents]


def _matching_files(name: str) -> list[Path]:
    """Return the file of a path, or the files of a pattern."""
    if Path(name).is_file():
        return [Path(name)]
    paths = sorted(map(Path, glob.glob(name, recursive=True)))
    files = [path for path in paths if path.is_file()]
    if not files:
        raise UsageError(
            f"--text {name} names no file; give a text file, or a pattern in quotes such as"
            " 'essays/*.txt'"
        )
    return files


def _read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; one more than allowed of a larger one."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise BadSource(
            f"{path} cannot be read ({problem.strerror}); give another --text"
        ) from None


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
    # a str is iterable too, so one text is told from several by its type
    is_one_text = isinstance(values, str | bytes | os.PathLike)
    if is_one_text or not isinstance(values, Iterable):
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
    if not gathered:
        return read_files([])  # raises an error that says so
    return gathered


def tokenize(files: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> Texts:
    """Return texts as tokens, with warnings about unusual ones.

    A text with the same tokens as an earlier one is left out. Errors are between texts, and two
    copies would count as two independent texts.

    Args:
        files: Names and contents.
        tokenizer: The tokenizer of the model.

    Raises:
        BadSource: A text is binary or empty.
    """
    documents = []
    remarks = []
    name_by_tokens: dict[bytes, str] = {}  # the first text with these tokens, by their sha256
    copies = []
    for name, text in files:
        found = remark(name, text)
        ids = np.array(tokenizer.encode(text), np.int32)
        if len(ids) < 2:
            raise BadSource(f"{name} has {len(ids)} tokens; give a --text with more")
        tokens = hashlib.sha256(ids.tobytes()).digest()
        if tokens in name_by_tokens:
            copies.append(f"{name} (of {name_by_tokens[tokens]})")
            continue

        name_by_tokens[tokens] = name
        if found:
            remarks.append(found)
        documents.append(TextDocument(name, ids))
    if copies:
        texts_are_copies = counted(len(copies), "text is a copy", "texts are copies")
        remarks.append(f"{texts_are_copies} and left out: {_list_names(copies)}.")
    return Texts(tuple(documents), tokenizer, tuple(remarks))


def _decode_text(data: bytes, name: str) -> str:
    """Return the text of a file, which must be UTF-8 and of an allowed size."""
    if len(data) > MOST_BYTES:
        raise BadSource(f"{name} has more than {MOST_BYTES:,} bytes; give a part of it as --text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadSource(
            f"{name} is not text in UTF-8; convert it, or give another --text"
        ) from None


def long_enough(texts: Texts, length: int) -> list[int]:
    """Return the numbers of the documents that fill a sequence of `length` tokens.

    `Texts.notes` names the others from then on.

    Raises:
        BadSource: There is none.
    """
    sizes = [len(document.ids) + len(texts.prefix) for document in texts.documents]
    numbers = [number for number, size in enumerate(sizes) if size >= length]
    if not numbers:
        most = max(sizes)
        raise BadSource(
            f"the longest text has {most:,} tokens, and sequences of {length:,} are asked for; give"
            f" a longer --text, or --lengths up to {format_tokens(most)}"
        )
    texts.window_lengths.add(length)
    return numbers


def window_ends(texts: Texts, sizes: EvaluationSizes, apart: int) -> list[tuple[int, int]]:
    """Return windows of the longest length, in turn from all documents that are long enough.

    In each document they are spread evenly, and end at least `apart` tokens from each other; so
    there are fewer than `sizes.windows` where the texts are short, and as `count_for_test` says.

    Args:
        texts: The texts.
        sizes: The longest length, and how many windows.
        apart: The least distance of their ends in tokens.

    Returns:
        The number of the document and the index after the last token of each window.
    """
    length = sizes.longest - len(texts.prefix)
    documents = long_enough(texts, sizes.longest)

    # 7 windows of 3 documents are 3, 2 and 2: the first `rest` documents have one more
    windows_each, rest = divmod(sizes.windows, len(documents))
    ends: dict[int, list[int]] = {}
    for place, number in enumerate(documents):
        wanted = windows_each
        if place < rest:
            wanted += 1
        size = len(texts.documents[number].ids)
        ends[number] = _spread_ends(size, length, wanted, apart)

    # the first window of each document, then the second of each, and so on
    windows = []
    most_windows = max(len(document_ends) for document_ends in ends.values())
    for turn in range(most_windows):
        for number, document_ends in ends.items():
            if turn < len(document_ends):
                windows.append((number, document_ends[turn]))
    return windows[: count_for_test([number for number, _ in windows])]


def count_for_test(documents: Sequence[int]) -> int:
    """Return how many windows, from the first one on, a difference can be tested on.

    A mean over six texts of which some have more windows than others is worth fewer than six equal
    texts (Kish 1965), too few for a test. The last windows are then left out, so that all have as
    many.

    Args:
        documents: The number of the text of each window, in turn from all texts.

    Returns:
        The number of windows; all of them where the texts are fewer than six.
    """
    for count in range(len(documents), 0, -1):
        windows_of_text = Counter(documents[:count])
        if len(windows_of_text) < FEWEST_DOCUMENTS:
            break
        squares = sum(windows**2 for windows in windows_of_text.values())
        if count**2 >= FEWEST * squares:
            return count
    return len(documents)


def _spread_ends(size: int, length: int, wanted: int, apart: int) -> list[int]:
    """Return where windows of a document end, spread evenly from its first to its last tokens.

    Three windows of 1,000 tokens in a document of 5,000 end at 1,000, 3,000 and 5,000. A single one
    ends with the document.

    Args:
        size: The tokens of the document.
        length: The tokens of a window.
        wanted: How many windows there should be.
        apart: The least distance of two ends. Where it leaves no space for all windows, there are
            fewer.
    """
    first_end = length
    span = size - first_end
    most = 1 + span // apart
    count = min(wanted, most)
    distance = span / max(count - 1, 1)
    # counted back from the last one, so that this ends with the document exactly
    return [size - int(index * distance) for index in reversed(range(count))]


class CheckpointTokenizer:
    """The tokenizer of a checkpoint.

    The name of a special token in a text, such as <s> in a page of HTML, is read as plain text.
    llama.cpp reads it so too.
    """

    def __init__(self, folder: Path, trust: bool = False) -> None:
        """Load the tokenizer with transformers.

        Args:
            folder: The checkpoint.
            trust: Whether to run code of the checkpoint (its tokenization_*.py).

        Raises:
            BadSource: As `load_tokenizer` does.
        """
        self.tokenizer = load_tokenizer(folder, trust)
        # The tokens that the tokenizer puts before a text, such as <s>. Its attributes do not say
        # that: GPT-2 has a bos_token that it does not add.
        with_special = self.tokenizer("a", add_special_tokens=True).input_ids
        plain = self.tokenizer("a", add_special_tokens=False).input_ids
        self.prefix = prefix_of(with_special, plain)
        self._options = self._options_for_plain_text()

    def _options_for_plain_text(self) -> dict[str, bool]:
        """Return the options of a call that encodes a text without any special token."""
        options = {"add_special_tokens": False, "verbose": False}
        try:
            self.tokenizer("a", **options, split_special_tokens=True)
        except (TypeError, ValueError, NotImplementedError):
            # MistralCommonBackend (tokenization_mistral_common.py) refuses the option, and never
            # reads special tokens in a text
            return options
        return {**options, "split_special_tokens": True}

    def encode(self, text: str) -> list[int]:
        tokens = self.tokenizer(text, **self._options).input_ids
        return [int(token) for token in tokens]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))


def gguf_tokenizer(path: Path) -> LlamaCppProcess:
    """Return the tokenizer of a GGUF file, which is loaded when it is entered.

    Entering raises RopeconvError where llama.cpp cannot load it.
    """
    return LlamaCppProcess(Load(path=str(path), vocabulary_only=True))
