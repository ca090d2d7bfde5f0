"""The result of an evaluation, its file, its tables, and what receipts keep of it.

`Result` has every cell of the tables and how they were measured; `tables` arranges the cells for
display.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec

from ropeconv.bake.items import (
    RECIPE,
    Item,
    RecordItem,
    is_record,
    method_and_factor,
    write_items,
)
from ropeconv.bake.proof import FEWEST_DOCUMENTS
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
from ropeconv.rope.recipe import Recipe, flags, recipe_text
from ropeconv.rope.summary import SummaryTable, TableSummary
from ropeconv.verbs.rows import Row
from ropeconv.version import SCHEMA, __version__

from .cases import SERVER, Observation, in_trained
from .measures.measure import REGISTRY

MOST_CHARACTERS = 64 << 20
"""Characters of a result; one of a hundred rows and all measures has some ten million."""
POSITION = "position"
"""The measure whose columns are places in one pass, and not lengths of sequences."""
SIGNIFICANT = "*"
"""The mark of a significant difference, where it cannot be bold."""


class Cell(MeasuredRecord, frozen=True, kw_only=True):
    """A number of the table."""

    row: str
    """The name of the row."""

    windows: int
    """How many windows it is from."""

    documents: int
    """How many documents it is from."""

    depth: float | None = None
    """The depth; None for the mean over depths, and for measures without depths."""


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """A row, and what follows from its cells."""

    name: str

    recipe: JsonObject | None = None
    """The recipe of the method; None for the unchanged model and for outputs."""

    made_by: JsonObject | None = None
    """The recipe by which an output of `apply` was made; None for other rows."""

    refused: str = ""
    """Why the row was not run; empty where it was."""

    price: float | None = None
    """The loss at the trained length minus that of the first row, in nats per token.

    None in the first row, and where that length was not measured.
    """

    price_error: float | None = None
    """The standard error of the price."""

    holds_to: int | None = None
    """The longest length in tokens at which the loss is not significantly above the row's best.

    None where growth was not measured at the trained length, or in fewer than six windows.
    """


class Result(TableSummary, msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation."""

    source: str
    """The model as the user named it."""

    model: str = ""
    """The name of the source of an output; empty where `source` is the model itself."""

    identity: str
    """A digest of the model."""

    runtime: str
    """Name and version of the runtime."""

    device: str
    dtype: str

    trained: int
    """The trained context in tokens."""

    original_context: int = 0
    """The context before the scaling of the model, in tokens; 0 for the trained context."""

    sliding_window: int = 0
    """The tokens that most layers see, in a model with other layers that see all tokens.

    0 for any other model, and where it is not known.
    """

    lengths: list[int]
    """The lengths of the sequences in tokens."""

    measures: list[str]
    """The names of the measures."""

    texts: list[str]
    """The names of the documents."""

    tokens_sha256: str
    """The sha256 over the tokens of all documents."""

    seed: int
    """The seed of random choices."""

    windows: int = 0
    """The sequences of each length that were asked for; 0 in older results, as the next two."""

    targets: int = 0
    """The tokens predicted at the end of each sequence, at most."""

    depths: int = 0
    """The places of a fact in a text."""

    generate: bool = False
    """Whether answers were generated."""

    seconds: float
    """The time of all cases."""

    rows: list[RowResult]
    cells: list[Cell]

    items: list[Item] = []
    """The single numbers that cells are means of, so that any two rows can be compared.

    Older results have none.
    """

    sample: str = ""
    """A digest of the texts and of what was read of them, equal for two results of equal tokens."""

    notes: list[str] = []
    """Sentences below the tables."""

    schema: int = SCHEMA
    """The version of this form."""

    ropeconv: str = ""
    """The version of ropeconv that measured it."""

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

    @property
    def unscaled_context(self) -> int:
        """The context that a method multiplies, unless it is put on top of a scaling."""
        return self.original_context or self.trained

    def cell(self, row: str, measure: str, metric: str, column: int) -> Cell | None:
        """Return the cell over all depths; None where it was not measured."""
        wanted = (row, measure, metric, column, None)
        for cell in self.cells:
            if (cell.row, cell.measure, cell.metric, cell.column, cell.depth) == wanted:
                return cell
        return None

    @property
    def sentence(self) -> str:
        """The row with the lowest loss at the longest length, and how many rows were refused."""
        losses = [cell for cell in self.cells if cell.measure == GROWTH and cell.metric == "loss"]
        if losses:
            longest = max(cell.column for cell in losses)
            at_longest = [cell for cell in losses if cell.column == longest]
            best = min(at_longest, key=lambda cell: cell.value)
            text = (
                f"The lowest loss at {longest:,} tokens is that of {best.row}:"
                f" {best.value:.3f} nats per token"
            )
        else:
            measured_rows = {cell.row for cell in self.cells}
            text = f"{counted(len(measured_rows), 'row was', 'rows were')} measured"

        refused_rows = [row for row in self.rows if row.refused]
        if refused_rows:
            text += f"; {counted(len(refused_rows), 'row was', 'rows were')} refused"
        return f"{text}."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
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
        for table in tables(self, MOST_SHOWN_COLUMNS):
            lines = []
            for name, entries in table.lines:
                texts = [_entry_text(entry) for entry in entries]
                lines.append((name, *texts))
            columns = ("row", *table.columns)
            shown.append(SummaryTable(name="cells", columns=columns, rows=lines, title=table.title))
        return shown

    def records(self) -> list[JsonObject]:
        """Return a row for each cell, with its errors and its difference to the first row."""
        return [{name: getattr(cell, name) for name in self.record_keys} for cell in self.cells]

    def to_dict(self) -> JsonObject:
        """Return the result as JSON-ready data, with every key."""
        data: JsonObject = msgspec.to_builtins(self)
        return data


def write_result(result: Result, path: Path) -> None:
    """Write the result of an evaluation as JSON, or only its single numbers, as a record.

    A record has a line for each number (item), as the public record of measurements. A file that is
    there is replaced.

    Args:
        result: The result.
        path: The file; a name that ends in .jsonl.gz or .jsonl is that of a record.

    Raises:
        OSError: The file cannot be written.
    """
    if is_record(path):
        write_items(record_items(result), path)
        return
    write_file(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def items_of(observations: Mapping[str, Sequence[Observation]], texts: Sequence[str]) -> list[Item]:
    """Return every number of an evaluation, one for each row, metric, text and place in it.

    The tables have the means of these.

    Args:
        observations: The observations by row.
        texts: The names of the texts.
    """
    names = _distinct_names(texts)
    items = []
    for row, observations_of_row in observations.items():
        for observation in observations_of_row:
            # the documents of a task of lm_eval are those of its data set, which have no names
            text = f"{observation.measure}/{observation.document}"
            if observation.measure in REGISTRY and observation.document < len(names):
                text = names[observation.document]
            items.append(
                Item(
                    row=row,
                    measure=observation.measure,
                    metric=observation.metric,
                    length=observation.column,
                    text=text,
                    window=observation.window,
                    depth=observation.depth,
                    value=float(observation.value),
                    weight=observation.weight,
                )
            )
    return items


def _distinct_names(paths: Sequence[str]) -> list[str]:
    """Return the file names of texts, with a number where two are equal.

    a/book.txt and b/book.txt are "book.txt" and "book.txt (2)".
    """
    distinct: list[str] = []
    for number, path in enumerate(paths, 1):
        name = Path(path).name
        if name in distinct:
            name = f"{name} ({number})"
        distinct.append(name)
    return distinct


def record_items(result: Result) -> list[RecordItem]:
    """Return each single number of a result with its model and method, for the public record.

    An output of `apply` has the items of the method on its source: those of `model-yarn4` are of
    the row yarn:4 of the model.

    Raises:
        UsageError: The result has no items.
    """
    if not result.items:
        raise UsageError(
            f"the evaluation of {result.source} has only means, and no single numbers; run"
            " `ropeconv eval` again, its journal has them"
        )
    rows = {row.name: _recorded_row(row, result) for row in result.rows}
    identity = _identity_of_model(result)
    items = []
    for item in result.items:
        row = rows.get(item.row) or RecordedRow(item.row, item.row)
        fields = msgspec.structs.asdict(item) | {"row": row.name}
        items.append(
            RecordItem(
                **fields,
                model=result.model or Path(result.source).name,
                identity=identity,
                trained=result.trained,
                sliding_window=result.sliding_window,
                method=row.method,
                factor=row.factor,
                runtime=result.runtime,
                dtype=result.dtype,
                sample=result.sample,
            )
        )
    return items


def _identity_of_model(result: Result) -> str:
    """Return the digest of the model that items are of; empty where it is not known.

    The digest of a result is that of the output where its source was not found, and that of the
    tokenizer where servers were measured.
    """
    has_source = any(row.made_by is None for row in result.rows)
    return result.identity if has_source and result.device != SERVER else ""


class RecordedRow(NamedTuple):
    """A row as items of the public record have it."""

    name: str
    """The method with its value and settings, `base`, or the name of a model on a server."""

    method: str

    factor: float | None = None
    """The factor of the method; None for methods without one."""


def _recorded_row(row: RowResult, result: Result) -> RecordedRow:
    """Return the row of the public record that a row of a result is: yarn:4 for its output.

    Args:
        row: The row.
        result: The result.
    """
    original = result.unscaled_context
    if row.recipe is not None:
        return RecordedRow(row.name, *method_and_factor(row.recipe, original, result.trained))
    if row.made_by is None:  # the unchanged model, or one on a server by its own name
        return RecordedRow(row.name, row.name)

    recipe = Recipe.from_dict(row.made_by)
    name = recipe_text(recipe)
    has_lists = flags(recipe) is None  # lists of numbers are in a file, and not in a name
    if has_lists:
        name = f"{RECIPE}{row.name}"
    return RecordedRow(name, *method_and_factor(row.made_by, original, result.trained))


def read_result(path: Path) -> Result:
    """Read a result that `write_result` wrote.

    Raises:
        UsageError: The file cannot be read.
        BadSource: The file is not a result, or one of a later version.
    """
    if is_record(path) or path.suffix == ".gz":
        raise UsageError(
            f"{path} is a record, which has only the single numbers; give the result, as `ropeconv"
            " eval -o NAME.json` writes it"
        )
    try:
        text = read_text(path, str(path))
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}); give a file that `ropeconv eval -o` wrote"
        ) from None

    # Before the fields are converted: a later version may have changed their types, and the
    # message of the conversion would name a field instead of the reason.
    data = jsontext.parse(text, str(path), MOST_CHARACTERS)
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise BadSource(f"{path} is of a later ropeconv than {__version__}; upgrade ropeconv")
    if "cells" not in data or "rows" not in data:
        raise BadSource(
            f"{path} is not the result of an evaluation; give a file that `ropeconv eval -o` wrote"
        )
    result = as_type(data, Result, str(path))

    # Python's json module reads NaN and Infinity, which the tables and plots cannot show
    names = {row.name for row in result.rows}
    for cell in result.cells:
        numbers = (cell.value, cell.error, cell.difference, cell.difference_error)
        all_finite = all(number is None or math.isfinite(number) for number in numbers)
        if cell.row not in names or not all_finite:
            raise BadSource(f"{path} has a wrong cell of {cell.row}; run `ropeconv eval` again")
    return result


@dataclass(frozen=True)
class Entry:
    """A number for display."""

    text: str
    """The number, or "-"."""

    error: str = ""
    """Its standard error or interval."""

    decided: bool | None = None
    """As in Cell."""


@dataclass(frozen=True)
class Table:
    """The numbers of one measure."""

    title: str
    """The measure, its unit, and the sample that it is from."""

    columns: tuple[str, ...]
    """The headings."""

    lines: tuple[tuple[str, tuple[Entry, ...]], ...]
    """Name and entries of each row."""


NOT_MEASURED = Entry("-")
MOST_SHOWN_COLUMNS = 6
"""Columns of a measure by position on a screen and in a notebook.

`cells`, --json and --report have all of them.
"""


def _entry_text(entry: Entry) -> str:
    """Return an entry with its mark and its error."""
    mark = SIGNIFICANT if entry.decided else ""
    return f"{entry.text}{mark} {entry.error}".rstrip()


def tables(result: Result, most: int = 10_000) -> list[Table]:
    """Return the tables of a result: for each measure its main metric, and other shares.

    Args:
        result: The result.
        most: Columns of the loss by position, which are chosen at even distances. Other measures
            keep all their columns.
    """
    shown = []
    for measure in measures_of(result):
        for metric in shown_metrics(result, measure):
            shown.append(_table(result, measure, metric, most))
    return shown


def measures_of(result: Result) -> list[str]:
    """Return the measures with numbers, in the order of --measure."""
    measured = dict.fromkeys(cell.measure for cell in result.cells)
    in_order = [name for name in result.measures if name in measured]
    others = [name for name in measured if name not in in_order]
    return list(dict.fromkeys(in_order + others))


def main_metric(result: Result, measure: str) -> str:
    """Return the metric of a measure that pictures show: "loss" for growth, say."""
    measured = [cell.metric for cell in result.cells if cell.measure == measure]
    if measure in REGISTRY:
        for name in REGISTRY[measure].metrics:
            if name in measured:
                return name
    return measured[0]


def shown_metrics(result: Result, measure: str) -> list[str]:
    """Return the metrics of a measure that tables show: the main one, shares and memory."""
    metrics = [main_metric(result, measure)]
    for cell in result.cells:
        if cell.measure != measure or cell.metric in metrics:
            continue
        kind = metric_of(cell.metric)
        if kind.share or kind.shown:
            metrics.append(cell.metric)
    return metrics


def columns_of(result: Result, measure: str) -> list[int]:
    """Return the columns of a measure, rising."""
    return sorted({cell.column for cell in result.cells if cell.measure == measure})


def _table(result: Result, measure: str, metric_name: str, most: int) -> Table:
    """Return the table of a metric: a line for each row, a column for each length or position.

    Args:
        result: The result.
        measure: The kind of test, such as growth (the loss at several lengths) or passkey.
        metric_name: The number that the test gives, such as loss or accuracy.
        most: The largest number of columns in a table of losses by position.
    """
    columns = columns_of(result, measure)  # lengths or positions in tokens
    if measure == POSITION:
        columns = _choose_columns(columns, most, result.trained)
        headings = [f"{column:,}" for column in columns]
    else:
        headings = [in_trained(column, result.trained) for column in columns]  # such as "2T"

    # two more columns for losses by length: what the method costs at the trained length, and the
    # longest length at which its loss does not rise
    if measure == GROWTH:
        headings += ["price", "holds to"]

    # the cells by row and column; cells of a single depth are in the heat maps
    cells: dict[tuple[str, int], Cell] = {}
    for cell in result.cells:
        is_of_table = cell.measure == measure and cell.metric == metric_name
        if is_of_table and cell.depth is None:
            cells[cell.row, cell.column] = _with_questions(cell, result)

    metric = metric_of(metric_name)
    lines: list[tuple[str, tuple[Entry, ...]]] = []
    for row in result.rows:
        row_cells = [cells.get((row.name, column)) for column in columns]
        was_measured = any(cell is not None for cell in row_cells)
        if not was_measured:
            continue
        entries = []
        for measured in row_cells:
            entry = NOT_MEASURED
            if measured is not None:
                entry = _entry(measured, metric)
                is_below_first = bool(lines)
                if is_below_first and not metric.share and measured.difference is None:
                    entry = replace(entry, text=f"({entry.text})")
            entries.append(entry)
        if measure == GROWTH:
            entries += price_and_reach(row, result)
        lines.append((row.name, tuple(entries)))

    # the title: "growth: loss in nats per token, then minus base; n = 8"
    explanation = ""
    if metric.share:
        explanation = ", 95 % interval"
    elif len(lines) > 1:
        first_row, _ = lines[0]
        explanation = f", then minus {first_row}"  # rows below the first show differences to it
        if _is_partly_compared(cells.values(), first_row):
            explanation += f" (in parentheses where {first_row} has no number)"
    title = (
        f"{measure}: {metric.title}{explanation}; {_describe_sample(list(cells.values()), metric)}"
    )
    return Table(title, tuple(headings), tuple(lines))


def _is_partly_compared(cells: Iterable[Cell], first_row: str) -> bool:
    """Return whether a row below the first one has a number that the first row has not."""
    return any(cell.row != first_row and cell.difference is None for cell in cells)


def _with_questions(cell: Cell, result: Result) -> Cell:
    """Return a cell with its number of questions, which older results have only by depth."""
    if cell.questions or not metric_of(cell.metric).share:
        return cell
    place = (cell.row, cell.measure, cell.metric, cell.column)
    questions = 0
    for other in result.cells:
        other_place = (other.row, other.measure, other.metric, other.column)
        if other_place == place and other.depth is not None:
            questions += other.windows
    return msgspec.structs.replace(cell, questions=questions)


def _describe_sample(cells: Sequence[Cell], metric: Metric) -> str:
    """Return the sample of a table in words: `n = 8`, or `n = 12 texts, 24 questions` of shares.

    Args:
        cells: The cells of the table.
        metric: The metric that it shows.
    """
    texts = max((cell.documents for cell in cells), default=0)
    # for a task of lm_eval a document is a question
    are_questions = any(cell.measure not in REGISTRY for cell in cells)
    if not metric.share or are_questions:
        return sample_size(cells)
    if texts >= FEWEST_DOCUMENTS:
        return sample_size(cells, "texts")
    if any(cell.clusters > cell.windows for cell in cells):
        # `keys` asks several questions in one window, each of which is a number of its own
        windows = counted(max(cell.windows for cell in cells), "window")
        numbers = [msgspec.structs.replace(cell, questions=0) for cell in cells]
        return sample_size(numbers, f"questions in {windows} of {counted(texts, 'text')}")
    return sample_size(cells, f"windows of {counted(texts, 'text')}")


def _choose_columns(columns: Sequence[int], most: int, trained: int) -> list[int]:
    """Choose at most so many columns of a table at even distances.

    The last one is among them, and the last one within the trained context.

    Args:
        columns: Positions in tokens, rising.
        most: How many to choose.
        trained: The trained context in tokens.
    """
    if len(columns) <= most:
        return list(columns)
    # 3 of 12 columns: those with the indices 3, 7 and 11
    chosen = []
    for number in range(1, most + 1):
        index = number * len(columns) // most - 1
        chosen.append(columns[index])

    # the end of the trained context replaces its nearest neighbour, but never the last column
    inside = [column for column in columns if column <= trained]
    if not inside or inside[-1] in chosen:
        return chosen
    end_of_trained = inside[-1]
    distances = [abs(column - end_of_trained) for column in chosen[:-1]]
    nearest = distances.index(min(distances))
    chosen[nearest] = end_of_trained
    return chosen


def _entry(cell: Cell, metric: Metric) -> Entry:
    """Return a cell for display, such as "3.412" with "±0.020", or "85 %" with "72-93".

    Args:
        cell: A mean of one row, such as yarn:4, with its error or its interval.
        metric: The measured quantity, which says how its numbers are written.
    """
    if cell.low is not None and cell.high is not None:
        interval = f"{metric.value(cell.low)}-{metric.value(cell.high)}"
        return Entry(metric.value(cell.value), interval, cell.decided)

    # the first row shows its value, and the others their difference to it
    if cell.difference is None:
        text = metric.value(cell.value)
        error = cell.error
    else:
        text = metric.difference(cell.difference)
        error = cell.difference_error
    shown_error = "" if error is None else f"±{metric.error(error)}"
    return Entry(text, shown_error, cell.decided)


def price_and_reach(row: RowResult, result: Result) -> tuple[Entry, Entry]:
    """Return the price of a method and its reach, for display.

    The price is its loss at the trained length minus that of the first row. The reach is the
    longest length at which its loss is not significantly higher; "4T+" where that is the longest
    one that was measured.

    Args:
        row: The row of the method.
        result: The evaluation.
    """
    price = NOT_MEASURED
    cell = result.cell(row.name, GROWTH, "loss", result.trained)
    if cell is not None and cell.difference is not None:
        price = _entry(cell, metric_of("loss"))

    reach = NOT_MEASURED
    if row.holds_to is not None:
        text = in_trained(row.holds_to, result.trained)
        own_lengths = [cell.column for cell in result.cells if _is_growth_of(cell, row)]
        longest = max(own_lengths)  # a server may accept less than others
        reach = Entry(f"{text}+" if row.holds_to == longest else text)
    return price, reach


def _is_growth_of(cell: Cell, row: RowResult) -> bool:
    """Return whether a cell is the loss of a row at a length."""
    return cell.row == row.name and cell.measure == GROWTH


def record(
    result: Result, rows: Sequence[Row], note: Callable[[str], None] = lambda sentence: None
) -> list[Path]:
    """Write what was measured of outputs into their receipts; return the paths of the outputs.

    A receipt is the file (or GGUF key) in which ropeconv describes an output that it has written.
    Rows without a path are not outputs, and outputs without a receipt are left out.

    Args:
        result: The result.
        rows: The rows that were evaluated.
        note: Gets a sentence on each output that was replaced or removed while it was evaluated.
            Its receipt does not get the numbers.

    Raises:
        OSError: A receipt cannot be written.
    """
    paths = []
    for row in rows:
        evaluations = evaluation_records(result, row.name)
        if row.path is None or not evaluations:
            continue
        receipt = row.receipt
        if receipt is None:
            try:
                receipt = read_receipt(row.path)
            except BadSource:  # a model that another program has made
                continue
        try:
            add_evaluation(row.path, receipt, *evaluations)
        except BadSource as problem:
            note(f"The numbers of {row.name} are not stored: {problem}.")
            continue
        paths.append(row.path)
    return paths


def evaluation_records(result: Result, name: str) -> list[EvaluationRecord]:
    """Return the main numbers of a row, for the receipt of the output that the row measured.

    Main numbers are the metrics in the tables on the screen, such as the loss at each length.

    Args:
        result: The evaluation.
        name: The name of the row.

    Returns:
        A record for each row that the numbers are compared with; most often one.
    """
    # losses by position are too many for a receipt
    cells = [cell for cell in result.cells if cell.row == name and cell.measure != POSITION]
    measured_by_first_row: dict[str, list[MeasuredRecord]] = {}
    for cell in cells:
        is_shown = cell.metric in shown_metrics(result, cell.measure)
        is_over_all_depths = cell.depth is None
        if is_shown and is_over_all_depths:
            # copies the fields that a cell and a record both have
            number = msgspec.convert(cell, MeasuredRecord, from_attributes=True)
            first_row = _first_row_of(result, cell.measure)
            against = "" if first_row == name else first_row
            measured_by_first_row.setdefault(against, []).append(number)

    row = next(row for row in result.rows if row.name == name)
    records = []
    for against, measured in measured_by_first_row.items():
        # the price and the reach are those of the losses by length
        has_growth = any(number.measure == GROWTH for number in measured)
        records.append(
            EvaluationRecord(
                against=against,
                runtime=result.runtime,
                device=result.device,
                dtype=result.dtype,
                trained=result.trained,
                texts=tuple(Path(text).name for text in result.texts),
                tokens_sha256=result.tokens_sha256,
                # the loss at the trained length minus the loss of the first row, in nats per token
                price=row.price if has_growth else None,
                price_error=row.price_error if has_growth else None,
                # the longest length at which the loss is not significantly above the lowest one
                holds_to=row.holds_to if has_growth else None,
                measured=tuple(measured),
                ropeconv=__version__,
            )
        )
    return records


def _first_row_of(result: Result, measure: str) -> str:
    """Return the row with which the others are compared by a measure: the first one that has it."""
    return next(cell.row for cell in result.cells if cell.measure == measure)
