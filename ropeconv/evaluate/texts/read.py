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


def read_texts(names: Sequence[str], tokenizer: Tokenizer) -> Texts:
    """The texts in files, as tokens.

    names: paths, patterns such as essays/*.txt, or - for standard input. tokenizer: of the model. Raises BadSource
    where a file is missing, empty or not UTF-8, and UsageError where no name is given or a pattern has no file.
    """
    documents, notes = [], []
    for name, text in [pair for given in names for pair in _files(given)]:
        ids = np.array(tokenizer.encode(text), np.int32)
        if len(ids) < 2:
            raise BadSource(f"{name} has {len(ids)} tokens; give a --text with more")
        documents.append(Document(name, ids))
        notes.append(remark(name, text))
    if not documents:
        raise UsageError("no text is given; name a file with --text (a book, or several essays)")
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
