"""Options of commands that run a model: where, in which precision, and what they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..extras import require
from .choices import Dtype
from .command import OUTPUT, RUNNING

DeviceOption = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps.", rich_help_panel=RUNNING)
]
DtypeOption = Annotated[
    Dtype, typer.Option("--dtype", help="auto: float32 on a CPU, elsewhere as stored.", rich_help_panel=RUNNING)
]
DeviceMapOption = Annotated[
    str,
    typer.Option(
        "--device-map",
        metavar="MAP",
        help="auto spreads the model over several devices.",
        rich_help_panel=RUNNING,
        show_default=False,
    ),
]
ChunkOption = Annotated[
    int, typer.Option("--chunk", min=1, help="Tokens that the model sees at a time.", rich_help_panel=RUNNING)
]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE", help="Write a page with plots and all numbers (HTML).", rich_help_panel=OUTPUT
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run code of the models that ropeconv has not written, and load pickled weights."
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Write the plots (.png or .svg).", rich_help_panel=OUTPUT),
]


def check_places(report: Path | None, plot: Path | None, out: Path | None = None) -> None:
    """Raises UsageError for files that could not be written at the end."""
    from ..pictures.style import checked

    if report is not None or plot is not None:
        require("matplotlib", "--report" if plot is None else "--plot")
    if plot is not None:
        checked(plot)
    for path in (report, plot, out):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path.parent} does not exist; create it, or choose another place for {path.name}")
