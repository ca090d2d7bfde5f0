"""Options of `ropeconv tune`."""

from __future__ import annotations

from typing import Annotated

import typer

from .command import LENGTH, MODEL, RUNNING

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", show_default=False, help="A checkpoint: a folder, or an id on the Hub.")
]
ContextOption = Annotated[
    str, typer.Option("--context", metavar="TOKENS", rich_help_panel=LENGTH, help="The context to reach.")
]
StartOption = Annotated[
    str,
    typer.Option(
        "--start", metavar="METHOD", rich_help_panel=MODEL, show_default=False,
        help="The formula to begin with (default: the one that loses least).",
    ),
]  # fmt: skip
AttentionFactorOption = Annotated[
    float | None,
    typer.Option(
        "--attention-factor", metavar="A", rich_help_panel=LENGTH, show_default=False,
        help="Keep cos and sin times A, instead of tuning that too.",
    ),
]  # fmt: skip
InsideOption = Annotated[
    float,
    typer.Option(
        "--inside", metavar="WEIGHT", rich_help_panel=RUNNING,
        help="Weight of the loss inside the trained context, beside that beyond it.",
    ),
]  # fmt: skip
NeedlesOption = Annotated[
    float,
    typer.Option(
        "--needles", metavar="WEIGHT", rich_help_panel=RUNNING,
        help="Weight of the loss of a number hidden in each window.",
    ),
]  # fmt: skip
RegulariseOption = Annotated[
    float,
    typer.Option(
        "--regularise", metavar="WEIGHT", rich_help_panel=RUNNING,
        help="Weight of the squared distance of log divisors to the formula.",
    ),
]  # fmt: skip
WindowsOption = Annotated[
    int, typer.Option("--windows", min=2, metavar="N", rich_help_panel=RUNNING, help="Windows that the search reads.")
]
HeldWindowsOption = Annotated[
    int,
    typer.Option(
        "--held-windows", min=0, metavar="N", rich_help_panel=RUNNING, show_default=False,
        help="Windows of held-out text (default: as many).",
    ),
]  # fmt: skip
TargetsOption = Annotated[
    int,
    typer.Option(
        "--targets", min=1, metavar="N", rich_help_panel=RUNNING,
        help="Tokens predicted in a window, inside the trained context and beyond it alike.",
    ),
]  # fmt: skip
StepsOption = Annotated[
    int, typer.Option("--steps", min=1, metavar="N", rich_help_panel=RUNNING, help="Most steps of the search.")
]
