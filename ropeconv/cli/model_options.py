"""The options of `bound` and `plot` for a model that is given by numbers."""

from typing import Annotated

import typer

from ..options import MODEL

HeadDimOption = Annotated[
    int | None,
    typer.Option(
        "--head-dim",
        metavar="N",
        help="Width of one attention head (default: 128, or the SOURCE's own).",
        rich_help_panel=MODEL,
    ),
]
RotaryDimOption = Annotated[
    int | None,
    typer.Option(
        "--rotary-dim",
        metavar="N",
        help="How many of its dimensions rotate (default: all).",
        rich_help_panel=MODEL,
    ),
]
