"""Shared by `eval` and `tune`: their words on the command line, and their texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..options import TextOptions
from .command import Rule

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A folder, a GGUF file or an id on the Hub: a source, or an output of `apply`. May be left out with "
        "--server.",
    ),
]
RowsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[METHOD:VALUE]...", help="Methods to compare with the unchanged model, such as yarn:4."),
]
NEEDS_DATASET: Rule = (lambda given: given["dataset"], "is a column of --dataset; add that, or leave it out")


def sort_words(words: list[str], options: TextOptions) -> tuple[list[str], list[str]]:
    """The words of a command line without text files, and these: an unquoted `--text *.txt` becomes several words."""
    files = [word for word in words if options.text and not word.endswith(".gguf") and Path(word).is_file()]
    return [word for word in words if word not in files], [*options.text, *files]


def texts_of(names: list[str], options: TextOptions) -> list[tuple[str, str]]:
    """Names and contents of texts. names: of files. Raises UsageError for both sources of text, and for none."""
    from ..evaluate.texts import read_dataset, read_files

    if names and options.dataset:
        raise UsageError("--text and --dataset are two sources of text; give one of them")
    return read_dataset(options.dataset, options.field) if options.dataset else read_files(names)
