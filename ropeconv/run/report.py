"""The report of a run: one HTML page with the table, what failed, and the pictures of all evaluations."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import RopeconvError
from ..evaluate.report.plots import pictures
from ..evaluate.result import Result, read_result
from ..evaluate.tables import Table, tables
from ..extras import installed
from ..formats.template import render
from ..inspection.evidence import now
from ..pictures.page import Drawn, drawn
from ..version import __version__
from .table import RunTable


@dataclass(frozen=True)
class Evaluated:
    """The evaluation of a source.

    name: of the source. result, tables, pictures: of it; no pictures without matplotlib.
    """

    name: str
    result: Result
    tables: list[Table]
    pictures: list[Drawn]


def write_run_report(table: RunTable, plan: Path, path: Path) -> None:
    """Writes the report of a run. table: of it. plan: its file. path: of the page. Raises OSError."""
    counts = table.counts
    facts = {
        "Plan": plan.name,
        "Done": f"{counts['done']:,}",
        "Failed": f"{counts['failed']:,}",
        "Not run": f"{counts['not run']:,}",
        "Made with": f"ropeconv {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "Written": now(),
    }
    page = render(
        "run.html.jinja", plan=plan.stem, columns=("source", "recipe", "target", *table.columns),
        lines=[(table.cells(row), row.reason) for row in table.rows], reasons=table.reasons,
        published=[row.results["push"]["url"] for row in table.rows if "push" in row.results],
        evaluated=_evaluated(table), facts=facts,
    )  # fmt: skip
    path.write_text(page, "utf-8")


def _evaluated(table: RunTable) -> list[Evaluated]:
    found = []
    for number, row in enumerate(table.rows):
        if "eval" not in row.results or row.states["eval"] != "done":
            continue
        try:
            result = read_result(Path(row.results["eval"]["path"]))
        except RopeconvError:
            continue
        shown = drawn(pictures(result)) if installed("matplotlib") else []
        found.append(Evaluated(row.source, result, tables(result), [_of(one, f"eval-{number}") for one in shown]))
    return found


def _of(picture: Drawn, prefix: str) -> Drawn:
    """A picture whose names are those of its evaluation, since a page has several."""
    old, new = picture.name, f"{prefix}-{picture.name}"
    return replace(picture, name=new, svg=picture.svg.replace(f'"{old}', f'"{new}').replace(f"#{old}", f"#{new}"))
