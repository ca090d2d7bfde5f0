"""Result, with every cell of the tables of an evaluation and how they were measured; its file, and
its tables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import msgspec

from ropeconv.errors import BadSource, UsageError
from ropeconv.formats import jsontext
from ropeconv.formats.drafts import write_file
from ropeconv.formats.files import read_text
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.package_data import as_type
from ropeconv.inspection.receipts.metrics import GROWTH, Metric, metric_of, sample_size
from ropeconv.inspection.receipts.receipt import EvaluationRecord, MeasuredRecord
from ropeconv.inspection.receipts.storage import add_evaluation, read_receipt
from ropeconv.rope.errors import counted
from ropeconv.rope.summary import SummaryTable, TableSummary
from ropeconv.verbs.rows import Row
from ropeconv.version import SCHEMA, __version__

from .cases import in_trained
from .measures.measure import REGISTRY

LONGEST = 64 << 20
"""Characters of a result; one of a hundred rows and all measures has some ten million."""
POSITION = "position"
"""The measure whose columns are places in one pass, and not lengths of sequences."""
SIGNIFICANT = "*"
"""The mark of a significant difference, where it cannot be bold."""
FEWEST = 4
"""Clusters below which no difference is tested."""
FEWEST_DOCUMENTS = 5
"""Documents from which errors are between documents, otherwise between windows."""
ALPHA = math.erfc(3 / math.sqrt(2))
"""The level of a test: the two-sided probability of more than three standard errors in a normal
distribution.
"""


@cache
def critical(freedom: int, alpha: float = ALPHA) -> float:
    """The two-sided critical value of Student's t: 9.22 for 3 degrees of freedom, 3.00 for many."""
    from scipy.stats import t as student  # takes a second to import

    return float(student.isf(alpha / 2, freedom))


def margin(error: float | None, clusters: int) -> float | None:
    """How far from 0 a difference must be to be significant; None without an error, and below four
    clusters.

    error: its standard error. clusters: independent windows or texts that the error is from.
    """
    return None if error is None or clusters < FEWEST else critical(clusters - 1) * error


class Cell(MeasuredRecord, frozen=True, kw_only=True):
    """A number of the table.

    depth: None for the mean over depths, and for measures without. windows, documents: how many it
    is from.
    """

    row: str
    windows: int
    documents: int
    depth: float | None = None


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """A row, and what follows from its cells.

    recipe: of the method; None for the unchanged model. refused: why it was not run; empty where it
    was. price: loss at the trained length minus the first row's, in nats per token, and
    price_error: its standard error; None in the first row, and where that length was not measured.
    holds_to: the longest length at which the loss is not significantly above the row's best; None
    where growth was not measured at the trained length, or in fewer than four windows.
    """

    name: str
    recipe: JsonObject | None = None
    refused: str = ""
    price: float | None = None
    price_error: float | None = None
    holds_to: int | None = None


class Result(TableSummary, msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation.

    source: the model as the user named it. identity: a digest of it. trained: the trained context
    in tokens. lengths: in tokens. measures: names. texts: names of the documents. tokens_sha256:
    over the tokens of all of them. seed: of random choices. seconds: of all cases. notes: sentences
    below the tables.
    """

    source: str
    identity: str
    runtime: str
    device: str
    dtype: str
    trained: int
    lengths: list[int]
    measures: list[str]
    texts: list[str]
    tokens_sha256: str
    seed: int
    seconds: float
    rows: list[RowResult]
    cells: list[Cell]
    notes: list[str] = []
    schema: int = SCHEMA
    ropeconv: str = ""

    record_keys: ClassVar[tuple[str, ...]] = (
        "row",
        "measure",
        "metric",
        "column",
        "depth",
        "value",
        "error",
        "low",
        "high",
        "difference",
        "difference_error",
        "margin",
        "decided",
        "clusters",
        "windows",
        "documents",
    )

    def cell(self, row: str, measure: str, metric: str, column: int) -> Cell | None:
        """The cell over all depths; None where it was not measured."""
        key = (row, measure, metric, column, None)
        return next(
            (c for c in self.cells if (c.row, c.measure, c.metric, c.column, c.depth) == key), None
        )

    @property
    def sentence(self) -> str:
        """The row with the lowest loss at the longest length, and how many rows were refused."""
        cells = [cell for cell in self.cells if cell.measure == GROWTH and cell.metric == "loss"]
        if cells:
            longest = max(cell.column for cell in cells)
            best = min(
                (cell for cell in cells if cell.column == longest), key=lambda cell: cell.value
            )
            words = (
                f"The lowest loss at {longest:,} tokens is that of {best.row}:"
                f" {best.value:.3f} nats per token"
            )
        else:
            measured = len({cell.row for cell in self.cells})
            words = f"{counted(measured, 'row was', 'rows were')} measured"
        refused = sum(bool(row.refused) for row in self.rows)
        if refused:
            words += f"; {counted(refused, 'row was', 'rows were')} refused"
        return f"{words}."

    def summary(self) -> dict[str, str]:
        """The facts to print, by name."""
        refused = [f"{row.name} was refused: {row.refused}" for row in self.rows if row.refused]
        return {
            "sentence": self.sentence,
            "source": self.source,
            "runtime": self.runtime,
            "device": self.device,
            "dtype": self.dtype,
            "trained": f"{self.trained:,} tokens",
            "rows": "\n".join(refused) or f"{len(self.rows)}",
            "notes": "\n".join(self.notes),
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table for each measure, with a line for each row."""
        shown = []
        for table in tables(self, MOST_SHOWN):
            lines = [(name, *map(_entry_text, entries)) for name, entries in table.lines]
            shown.append(SummaryTable("cells", ("row", *table.columns), lines, table.title))
        return shown

    def records(self) -> list[JsonObject]:
        """Return a row for each cell, with its errors and its difference to the first row."""
        return [{name: getattr(cell, name) for name in self.record_keys} for cell in self.cells]

    def to_dict(self) -> JsonObject:
        """JSON-ready data, with every key."""
        data: JsonObject = msgspec.to_builtins(self)
        return data


def write_result(result: Result, path: Path) -> None:
    """Write a result as JSON, in place of a file that is there. Raises OSError."""
    write_file(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def read_result(path: Path) -> Result:
    """The result in a file that `write_result` wrote.

    Raises UsageError for a missing file, and BadSource for one that is not a result, or of a later
    version.
    """
    try:
        text = read_text(path, str(path))
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}); give a file that `ropeconv eval -o` wrote"
        ) from None
    data = jsontext.parse(text, str(path), LONGEST)
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise BadSource(f"{path} is of a later ropeconv than {__version__}; upgrade ropeconv")
    if "cells" not in data or "rows" not in data:
        raise BadSource(
            f"{path} is not the result of an evaluation; give a file that `ropeconv eval -o` wrote"
        )
    result = as_type(data, Result, str(path))
    names = {row.name for row in result.rows}
    for cell in result.cells:
        numbers = (
            cell.value,
            cell.error or 0.0,
            cell.difference or 0.0,
            cell.difference_error or 0.0,
        )
        if cell.row not in names or not all(map(math.isfinite, numbers)):
            raise BadSource(f"{path} has a wrong cell of {cell.row}; run `ropeconv eval` again")
    return result


@dataclass(frozen=True)
class Entry:
    """A number for display. text: the number, or "-". error: its standard error or interval.
    decided: as in Cell.
    """

    text: str
    error: str = ""
    decided: bool | None = None


@dataclass(frozen=True)
class Table:
    """The numbers of one measure. title: what they are. columns: headings. lines: name and entries
    of each row.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Entry, ...]], ...]


NOTHING = Entry("-")
MOST_SHOWN = 6
"""Columns of a measure by position on a screen and in a notebook; `cells`, --json and --report have
all.
"""


def _entry_text(entry: Entry) -> str:
    """An entry with its mark and its error."""
    mark = SIGNIFICANT if entry.decided else ""
    return f"{entry.text}{mark} {entry.error}".rstrip()


def tables(result: Result, most: int = 10_000) -> list[Table]:
    """The tables of a result: of each measure its headline, and other shares.

    most: columns of the loss by position; of more, some at even distances are kept. Lengths are all
    kept.
    """
    return [
        _table(result, measure, metric, most)
        for measure in measures_of(result)
        for metric in headlines(result, measure)
    ]


def measures_of(result: Result) -> list[str]:
    """The measures with numbers, in the order of --measure."""
    measured = dict.fromkeys(cell.measure for cell in result.cells)
    return [name for name in dict.fromkeys([*result.measures, *measured]) if name in measured]


def headline(result: Result, measure: str) -> str:
    """The metric of a measure that tables and pictures show."""
    measured = [cell.metric for cell in result.cells if cell.measure == measure]
    known = REGISTRY[measure].metrics if measure in REGISTRY else ()
    for name in known:
        if name in measured:
            return name
    return measured[0]


def headlines(result: Result, measure: str) -> list[str]:
    """The metrics of a measure that tables have: the headline, and other shares of answers."""
    measured = dict.fromkeys(cell.metric for cell in result.cells if cell.measure == measure)
    first = headline(result, measure)
    return [first, *(name for name in measured if name != first and metric_of(name).share)]


def columns_of(result: Result, measure: str) -> list[int]:
    """The columns of a measure, rising."""
    return sorted({cell.column for cell in result.cells if cell.measure == measure})


def _table(result: Result, measure: str, name: str, most: int) -> Table:
    """The table of a metric of a measure."""
    columns = columns_of(result, measure)
    if measure == POSITION:
        columns = _choose_columns(columns, most, result.trained)
        headings = [f"{column:,}" for column in columns]
    else:
        headings = [in_trained(column, result.trained) for column in columns]
    if measure == GROWTH:
        headings += ["price", "holds to"]

    metric = metric_of(name)
    cells: dict[tuple[str, int], Cell] = {}
    for cell in result.cells:
        if cell.measure == measure and cell.metric == name and cell.depth is None:
            cells[cell.row, cell.column] = cell

    lines = []
    for row in result.rows:
        of_row = [cells.get((row.name, column)) for column in columns]
        if not any(of_row):
            continue
        entries = [NOTHING if cell is None else _entry(cell, metric) for cell in of_row]
        if measure == GROWTH:
            entries += price_and_reach(row, result)
        lines.append((row.name, tuple(entries)))

    then = ""
    if metric.share:
        then = ", 95 % interval"
    elif len(lines) > 1:
        first, _ = lines[0]
        then = f", then minus {first}"
    title = f"{measure}: {metric.title}{then}; {sample_size(cells.values())}"
    return Table(title, tuple(headings), tuple(lines))


def _choose_columns(columns: Sequence[int], most: int, trained: int) -> list[int]:
    """At most that many columns at even distances, with the last, and the last within the trained
    context.
    """
    if len(columns) <= most:
        return list(columns)
    kept = [columns[(number + 1) * len(columns) // most - 1] for number in range(most)]
    inside = [column for column in columns if column <= trained]
    if inside and inside[-1] not in kept:
        nearest = min(range(most - 1), key=lambda index: abs(kept[index] - inside[-1]))
        kept[nearest] = inside[-1]
    return kept


def _entry(cell: Cell, metric: Metric) -> Entry:
    """A cell for display: a share with its interval, or a number with its error."""
    if cell.low is not None and cell.high is not None:
        interval = f"{metric.value(cell.low)}-{metric.value(cell.high)}"
        return Entry(metric.value(cell.value), interval, cell.decided)
    if cell.difference is None:
        text = metric.value(cell.value)
        error = cell.error
    else:
        text = metric.difference(cell.difference)
        error = cell.difference_error
    return Entry(text, "" if error is None else f"±{metric.error(error)}", cell.decided)


def price_and_reach(row: RowResult, result: Result) -> tuple[Entry, Entry]:
    """Return the price at the trained length, and the length to which the row holds.

    The longest measured length has a plus.
    """
    price = NOTHING
    cell = result.cell(row.name, GROWTH, "loss", result.trained)
    if cell is not None and cell.difference is not None:
        price = _entry(cell, metric_of("loss"))

    reach = NOTHING
    if row.holds_to is not None:
        text = in_trained(row.holds_to, result.trained)
        longest = columns_of(result, GROWTH)[-1]
        reach = Entry(f"{text}+" if row.holds_to == longest else text)
    return price, reach


def record(result: Result, rows: Sequence[Row]) -> list[Path]:
    """Write the numbers of outputs into their receipts, and return the paths of these outputs.

    Rows without a path are not outputs; outputs without a receipt are left out. Raises OSError.
    """
    paths = []
    for row in rows:
        evaluation = recorded(result, row.name)
        if row.path is None or not evaluation.measured:
            continue
        try:
            receipt = read_receipt(row.path)
        except BadSource:
            continue
        add_evaluation(row.path, receipt, evaluation)
        paths.append(row.path)
    return paths


def recorded(result: Result, name: str) -> EvaluationRecord:
    """The headline numbers of the row with a name."""
    cells = [cell for cell in result.cells if cell.row == name and cell.measure != POSITION]
    row = next(row for row in result.rows if row.name == name)
    measured = []
    for cell in cells:
        if cell.depth is None and cell.metric in headlines(result, cell.measure):
            measured.append(msgspec.convert(cell, MeasuredRecord, from_attributes=True))
    compared = any(cell.difference is not None for cell in cells)
    first = next((cell.row for cell in result.cells if cell.difference is None), "")
    return EvaluationRecord(
        against=first if compared else "",
        runtime=result.runtime,
        device=result.device,
        dtype=result.dtype,
        trained=result.trained,
        texts=tuple(Path(text).name for text in result.texts),
        tokens_sha256=result.tokens_sha256,
        price=row.price,
        price_error=row.price_error,
        holds_to=row.holds_to,
        measured=tuple(measured),
        ropeconv=__version__,
    )
