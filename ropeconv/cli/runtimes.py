"""`ropeconv runtimes`: the table of runtimes, and what each does with every model family."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import JsonOption
from .output import Output

EXAMPLES = """Examples:

ropeconv runtimes

ropeconv runtimes --matrix

ropeconv runtimes --matrix --runtime vllm --runtime sglang
"""


def runtimes_command(
    matrix: Annotated[bool, typer.Option("--matrix", help="A line per model family, a column per runtime.")] = False,
    runtime: Annotated[
        list[str] | None,
        typer.Option("--runtime", metavar="NAME[@VERSION]", help="Only these, every version of each."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the runtimes, and how much is known of what each does with the model families."""
    from ..bake.matrix import matrix as all_cells
    from ..runtimes import find, runtimes
    from ..views.runtimes import newest_of, show_matrix, show_runtimes, summary

    output, cells = Output(as_json), all_cells()
    named = [row for name in runtime or () for row in find(name)]
    if not matrix:
        rows = [summary(row, cells) for row in named or runtimes()]
        if as_json:
            output.data({"runtimes": rows})
        else:
            show_runtimes(rows, output)
        return
    shown = {row.key: row for row in named or newest_of(runtimes())}
    if as_json:
        wanted = [cell for cell in cells if any(cell.verdict.covers(row) for row in shown.values())]
        output.data({"cells": [cell.to_dict() for cell in wanted]})
        return
    show_matrix(cells, list(shown.values()), output)
