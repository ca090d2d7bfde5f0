"""eval: all recipes of a source as rows on one load, with the journal of that evaluation beside its result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ...engines.transformers.device import out_of_memory
from ...evaluate.case import EVAL
from ...evaluate.evaluation import Evaluation
from ...evaluate.metric import metric_of
from ...evaluate.opening import open_evaluation
from ...evaluate.result import Result, write_result
from ...evaluate.runners.request import Opening
from ...evaluate.tables import headline, measures_of
from ...evaluate.texts.read import read_files
from ...formats.journal import Journal
from ..journal import stamp
from ..plan_file import EvalTable
from ..unit import Unit
from .task import Tools, task


@contextmanager
def evaluation_of(unit: Unit) -> Iterator[Evaluation]:
    """The evaluation of a unit, which can be estimated and run while it is entered."""
    table = msgspec.convert({name: value for name, value in unit.settings.items() if name != "sha256"}, EvalTable)
    opening = Opening(
        unit.source, [one.row() for one in unit.recipes], device=table.device, dtype=table.dtype, chunk=table.chunk,
        family=unit.family,
    )  # fmt: skip
    files = read_files(table.text)
    short = {Path(name).name: text for name, text in files}  # the same on every machine
    with open_evaluation(opening, table.sizes(), list(short.items()) if len(short) == len(files) else files) as found:
        yield found


@task("eval")
def eval_unit(unit: Unit, tools: Tools) -> dict[str, Any]:
    """Evaluates the recipes of a unit. Raises RopeconvError where no row can be run."""
    path = Path(unit.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    with evaluation_of(unit) as found:
        source = found.runner.source
        with Journal(path.with_name(f"{path.stem}-{source[:16]}.jsonl"), EVAL, source) as journal:
            damaged = list(journal.notes)
            out_of_memory(lambda: found.run(journal))
        result = found.result(unit.name)
    write_result(result, path)
    return {"path": unit.out, "rows": headlines(result), "notes": damaged, "stamp": stamp(path)}


def headlines(result: Result) -> dict[str, str]:
    """The main number of each row at the longest length, with its error; why a row was not run."""
    measure, length = next(iter(measures_of(result))), max(result.lengths)
    metric = headline(result, measure)
    words = metric_of(metric)
    found = {}
    for row in result.rows:
        cell = result.cell(row.name, measure, metric, length)
        if cell is None:
            found[row.name] = row.refused or "not measured"
        elif cell.difference is None:
            found[row.name] = words.value(cell.value)
        else:
            error = "" if cell.difference_error is None else f" ± {words.error(cell.difference_error)}"
            found[row.name] = f"{words.difference(cell.difference)}{error}"
    return found
