"""The matrix of runtimes and families, all of it or what the filters leave."""

from __future__ import annotations

from ..bake.matrix import matrix
from ..runtimes import runtimes
from ..views.legends import statuses
from ..views.runtimes import newest_of, show_matrix
from .forms import RuntimesForm
from .sheet import HtmlSheet

WRITINGS = {
    "theta": "a new base: theta, NTK", "linear": "linear", "llama3": "Llama 3.1 scaling", "yarn": "YaRN",
    "factors": "any frequencies (longrope factors)",
}  # fmt: skip
"""The ways to write RoPE, by the names that the matrix has for them."""


def shown(form: RuntimesForm) -> str:
    """The answer of the page: a letter per cell for all families, else a row per cell with its evidence."""
    sheet = HtmlSheet()
    cells = [
        cell
        for cell in matrix()
        if form.family in ("", cell.family) and form.runtime in ("", cell.verdict.runtime.partition("@")[0])
    ]
    if not form.family:
        rows = [row for row in runtimes() if form.runtime in ("", row.name)]
        show_matrix(cells, rows if form.runtime else newest_of(rows), sheet)
        sheet.note("Choose a family to see every cell with its reason and its evidence.")
        return sheet.html()
    columns = ("runtime", "method", "status", "reason", "evidence", "stated at")
    table = [
        (
            cell.verdict.display_name, WRITINGS[cell.writing], str(cell.verdict.status), cell.verdict.reason,
            " ".join(filter(None, (cell.verdict.grade, cell.verdict.evidence.detail))), cell.verdict.source,
        )
        for cell in cells
    ]  # fmt: skip
    sheet.table(f"What runtimes compute of {form.family}", columns, table)
    sheet.say(statuses((row[2], "") for row in table))
    return sheet.html()
