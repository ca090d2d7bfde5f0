"""Reads texts: files, patterns of file names, and standard input."""

from __future__ import annotations

import glob
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import BadSource, UsageError
from .documents import Document, Texts, Tokenizer
from .remarks import remark

MOST_BYTES = 256 << 20
"""Of one file; that is some fifty million tokens."""


def read_files(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names and contents of text files.

    names: paths, patterns such as essays/*.txt, or - for standard input. Raises BadSource where a file is not UTF-8 or
    is binary, and UsageError where no name is given or a pattern has no file.
    """
    files = [pair for given in names for pair in _files(given)]
    if not files:
        raise UsageError("no text is given; name a file with --text (a book, or several essays)")
    return files


def tokenized(files: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> Texts:
    """Texts as tokens.

    files: names and contents. tokenizer: of the model. Raises BadSource for one that is binary, or has no two tokens.
    """
    documents, notes = [], []
    for name, text in files:
        notes.append(remark(name, text))
        ids = np.array(tokenizer.encode(text), np.int32)
        if len(ids) < 2:
            raise BadSource(f"{name} has {len(ids)} tokens; give a --text with more")
        documents.append(Document(name, ids))
    return Texts(tuple(documents), tokenizer, tuple(filter(None, notes)))


def _files(given: str) -> list[tuple[str, str]]:
    if given == "-":
        return [("standard input", _decoded(sys.stdin.buffer.read(MOST_BYTES + 1), "standard input"))]
    paths = [Path(given)] if Path(given).is_file() else sorted(map(Path, glob.glob(given, recursive=True)))
    files = [path for path in paths if path.is_file()]
    if not files:
        raise UsageError(
            f"--text {given} names no file; give a text file, or a pattern in quotes such as 'essays/*.txt'"
        )
    return [(str(path), _text_of(path)) for path in files]


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _decoded(file.read(MOST_BYTES + 1), str(path))
    except OSError as problem:
        raise BadSource(f"{path} cannot be read ({problem.strerror}); give another --text") from None


def _decoded(data: bytes, name: str) -> str:
    if len(data) > MOST_BYTES:
        raise BadSource(f"{name} has more than {MOST_BYTES:,} bytes; give a part of it as --text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadSource(f"{name} is not text in UTF-8; convert it, or give another --text") from None
