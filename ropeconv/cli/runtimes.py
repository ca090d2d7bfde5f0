"""`ropeconv runtimes`: the table of runtimes, and what each does with every model family."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .legends import RUNTIMES, legend
from .options import JsonOption
from .output import Output

if TYPE_CHECKING:
    from ..bake.matrix import MatrixCell
    from ..runtimes import Runtime

EXAMPLES = """Examples:

ropeconv runtimes

ropeconv runtimes --matrix

ropeconv runtimes --matrix --runtime vllm --runtime sglang
"""
LEGEND = (
    "T a new base (theta, NTK), L linear, 3 llama3, Y YaRN, F any frequencies (longrope factors). A letter: exact in "
    "the newest version; a dot: not exact, `ropeconv inspect` and `apply --dry-run --explain` say why; -: it has no "
    "such model; ?: nobody looked."
)


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

    output, cells = Output(as_json), all_cells()
    if not matrix:
        rows = [_summary(row, cells) for row in runtimes()]
        if as_json:
            output.data({"runtimes": rows})
            return
        columns = ("--runtime", "what", "exact", "run", "read", "unknown", "source")
        optional = ("source", "what", "read", "unknown", "run")
        table = [tuple(map(str, row.values())) for row in rows]
        shown_columns = output.table("Runtimes", columns, table, optional=optional)
        counted = {"run", "read", "unknown"} <= set(shown_columns)
        output.say(legend(RUNTIMES, ("exact", *(["run, read, unknown"] if counted else []))))
        return
    columns_for = [row for name in runtime or () for row in find(name)] or _newest(runtimes())
    shown = {row.key: row for row in columns_for}
    if as_json:
        wanted = [cell for cell in cells if any(cell.verdict.covers(row) for row in shown.values())]
        output.data({"cells": [cell.to_dict() for cell in wanted]})
        return
    _show_matrix(cells, list(shown.values()), output)


def _summary(row: Runtime, cells: Iterable[MatrixCell]) -> dict[str, Any]:
    """A row of the table: the cells of a runtime that are exact, and how they are known."""
    from ..bake.matrix import counts

    own = [cell for cell in cells if cell.verdict.covers(row)]
    exact = sum(cell.verdict.status == "exact" for cell in own)
    return {
        "runtime": row.key, "display_name": row.display_name, "exact": f"{exact} of {len(own)}", **counts(own),
        "source": row.source,
    }  # fmt: skip


def _newest(rows: Iterable[Runtime]) -> list[Runtime]:
    return list({row.name: row for row in rows}.values())


def _show_matrix(cells: Iterable[MatrixCell], rows: list[Runtime], output: Output) -> None:
    from ..bake.matrix import letters

    by_family: dict[str, list[MatrixCell]] = {}
    for cell in cells:
        by_family.setdefault(cell.family, []).append(cell)
    table = [
        (family, *(letters(cell for cell in of_family if cell.verdict.covers(row)) for row in rows))
        for family, of_family in by_family.items()
    ]
    several = len({row.name for row in rows}) < len(rows)
    columns = [row.key if several else row.name for row in rows]
    output.table("What each runtime computes", ("family", *columns), table)
    output.say(LEGEND)
