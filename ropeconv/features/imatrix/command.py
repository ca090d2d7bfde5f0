"""`ropeconv imatrix`: an importance matrix from a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropeconv.cli.command import expand_options
from ropeconv.cli.options import check_place
from ropeconv.cli.screen import ProgressScreen
from ropeconv.cli.typer_classes import Command
from ropeconv.formats.files import expand_home
from ropeconv.options import Writes

from .options import PieceOptions

app = typer.Typer(add_completion=False)

EXAMPLES = """
ropeconv imatrix Qwen3-8B-BF16.gguf calibration.txt
ropeconv imatrix model.gguf calibration.txt -o model.imatrix.gguf --chunks 100
"""


@app.command("imatrix", cls=Command, epilog=EXAMPLES)
@expand_options
def imatrix_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A GGUF file, best in BF16 or Q8_0.", parser=expand_home
        ),
    ],
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A text file.", parser=expand_home)],
    pieces: PieceOptions,
    screen: ProgressScreen,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write (default: NAME.imatrix.gguf).",
            parser=expand_home,
        ),
        Writes(),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is there."), Writes()
    ] = False,
) -> None:
    """Compute an importance matrix from a text, for `apply --imatrix`.

    It is the file that llama-imatrix of llama.cpp writes.
    """
    from .collecting import imatrix

    check_place(out)
    result = imatrix(
        model,
        text,
        out=out,
        chunk_size=pieces.chunk_size,
        chunks=pieces.chunks,
        force=force,
        reporter=screen,
    )
    if screen.as_json:
        screen.data(result.to_dict())
    elif screen.quiet:
        screen.copyable(str(result.path))
    else:
        screen.copyable(result.sentence)
