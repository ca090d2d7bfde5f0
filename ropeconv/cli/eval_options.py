"""Options of `ropeconv eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .command import MODEL, OUTPUT, RUNNING, Rule

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
MethodsOption = Annotated[
    str,
    typer.Option(
        "--methods", metavar="ROWS", rich_help_panel=MODEL, show_default=False,
        help="The rows: base, METHOD:VALUE (with settings: yarn:4:beta_fast=16), recipe:FILE "
        "(default: base,yarn:4,mixed:4,ntk:4).",
    ),
]  # fmt: skip
AgainstOption = Annotated[
    str,
    typer.Option(
        "--against", metavar="SOURCE", rich_help_panel=MODEL, show_default=False,
        help="The source of an output, as the first row.",
    ),
]  # fmt: skip
ServersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--server", metavar="URL", rich_help_panel=MODEL,
        help="A running vLLM, SGLang or llama-server as a row, URL or NAME=URL (repeatable).",
    ),
]  # fmt: skip
TextOption = Annotated[
    list[str] | None,
    typer.Option(
        "--text", metavar="FILE", rich_help_panel=MODEL,
        help="Text to read: a file, a pattern in quotes, or - (repeatable).",
    ),
]  # fmt: skip
DatasetOption = Annotated[
    str,
    typer.Option(
        "--dataset", metavar="ID", rich_help_panel=MODEL, show_default=False,
        help="A dataset of the Hub instead of --text, as owner/name:SPLIT or owner/name:CONFIG:SPLIT.",
    ),
]  # fmt: skip
FieldOption = Annotated[
    str, typer.Option("--field", metavar="NAME", rich_help_panel=MODEL, help="The column of --dataset with the text.")
]
NEEDS_DATASET: Rule = (lambda given: given["dataset"], "is a column of --dataset; add that, or leave it out")
BudgetOption = Annotated[
    str,
    typer.Option(
        "--budget", metavar="TIME", rich_help_panel=RUNNING, show_default=False,
        help="Refuse a run that takes longer (90s, 20m, 2h), and say what fits.",
    ),
]  # fmt: skip
JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal", metavar="FILE", rich_help_panel=RUNNING, show_default=False,
        help="Where finished sequences are kept, so that a run continues (default: in the cache).",
    ),
]  # fmt: skip
FreshOption = Annotated[
    bool,
    typer.Option("--fresh", rich_help_panel=RUNNING, help="Begin a new journal; the one there gets another name."),
]
WorkersOption = Annotated[
    str,
    typer.Option(
        "--workers", metavar="WHERE", rich_help_panel=RUNNING, show_default=False,
        help="Several workers with the model: a number of processes, ray, auto, ray://HOST:PORT (docs/running.md).",
    ),
]  # fmt: skip
OutOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="FILE", rich_help_panel=OUTPUT, help="Write the result as JSON."),
]
FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if", metavar="CONDITION", rich_help_panel=OUTPUT,
        help="Exit with 3 if it holds significantly: 'yarn:4 > base @2T' (repeatable).",
    ),
]  # fmt: skip


def texts_of(names: list[str], dataset: str, field: str) -> list[tuple[str, str]]:
    """Names and contents of texts.

    names: of --text. dataset: of --dataset, empty for none. field: its column. Raises UsageError for both and for
    neither.
    """
    from ..evaluate.texts import read_dataset, read_files

    if names and dataset:
        raise UsageError("--text and --dataset are two sources of text; give one of them")
    return read_dataset(dataset, field) if dataset else read_files(names)
