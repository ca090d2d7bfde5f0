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
        typer.Option("--runtime", metavar="NAME[@VERSION]", help="With --matrix: only these, every version of each."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the runtimes, and how much is known of what each does with the model families."""
    from ..bake.matrix import matrix as all_cells
    from ..runtimes import find, runtimes
    from ..views.runtimes import newest_of, show_matrix, show_runtimes, summary

    output, cells = Output(as_json), all_cells()
    if not matrix:
        rows = [summary(row, cells) for row in runtimes()]
        if as_json:
            output.data({"runtimes": rows})
        else:
            show_runtimes(rows, output)
        return
    columns_for = [row for name in runtime or () for row in find(name)] or newest_of(runtimes())
    shown = {row.key: row for row in columns_for}
    if as_json:
        wanted = [cell for cell in cells if any(cell.verdict.covers(row) for row in shown.values())]
        output.data({"cells": [cell.to_dict() for cell in wanted]})
        return
    show_matrix(cells, list(shown.values()), output)
