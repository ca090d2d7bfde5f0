"""`ropeconv evidence compare` and `ropeconv evidence add`: the items of stored evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ropeconv.bake.items import RecordItem, compare_rows, is_record, read_items, write_items
from ropeconv.bake.proof import FEWEST, Proof
from ropeconv.cli.command import expand_options
from ropeconv.cli.screen import Screen
from ropeconv.cli.typer_classes import Command
from ropeconv.errors import UsageError
from ropeconv.formats.files import expand_home
from ropeconv.inspection.receipts.metrics import GROWTH, metric_of
from ropeconv.options import LENGTH, OUTPUT, Writes
from ropeconv.rope.errors import counted

from .cases import in_trained, parse_lengths
from .result import read_result, record_items

app = typer.Typer(add_completion=False)

RECORD = Path("docs/evidence/items")
"""The folder of the public record in a checkout."""
FILE = "A result or items that `ropeconv eval -o` wrote."
COMPARE_EXAMPLES = """
ropeconv evidence compare result.json yarn:4 mixed:4 --length 4T
ropeconv evidence compare items.jsonl.gz yarn:4 ntk:4 --measure passkey
"""
ADD_EXAMPLES = """
ropeconv evidence add items.jsonl.gz
ropeconv evidence add result.json --to ../ropeconv/docs/evidence/items
"""
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help=FILE, parser=expand_home, show_default=False)
]


def read_measured(path: Path) -> list[RecordItem]:
    """Return the items of a record, or of the result of an evaluation.

    Raises:
        UsageError: The file cannot be read, or is a result without items.
        BadSource: The file is neither.
    """
    if is_record(path) or path.suffix == ".gz":
        return read_items(path)
    return record_items(read_result(path))


@app.command("compare", cls=Command, epilog=COMPARE_EXAMPLES)
@expand_options
def compare_command(
    screen: Screen,
    file: FileArgument,
    first: Annotated[str, typer.Argument(metavar="ROW", help="A row, such as yarn:4.")],
    second: Annotated[str, typer.Argument(metavar="ROW", help="The row that is subtracted.")],
    length: Annotated[
        str,
        typer.Option(
            "--length",
            help="The length, as for `eval --lengths` (default: the longest one).",
            rich_help_panel=LENGTH,
            metavar="LENGTH",
            show_default=False,
        ),
    ] = "",
    measure: Annotated[
        str,
        typer.Option("--measure", help="The measure.", rich_help_panel=LENGTH, metavar="NAME"),
    ] = GROWTH,
) -> None:
    """Compare two rows of a stored evaluation on the items that both have.

    A difference counts by the rule of docs/evaluating.md, as in the marks of `eval`.
    """
    # the file has one number for each row (such as yarn:4), measure, length, text and window
    items = read_measured(file)
    tokens = _choose_length(items, length, measure, file)
    metrics = _metrics(items, measure, tokens, (first, second), file)  # such as ["loss"]

    # of each metric, the mean of first minus second over the windows that both rows have, with its
    # standard error; None where they have no window in common
    differences = {}
    for metric in metrics:
        difference = compare_rows(items, first, second, tokens, measure, metric)
        if difference is None:
            raise UsageError(
                f"{first} and {second} have no {measure} at {tokens:,} tokens in common;"
                " evaluate them in one run"
            )
        differences[metric] = difference

    if screen.as_json:
        document = {}
        for metric, difference in differences.items():
            is_significant = difference.decided
            document[metric] = asdict(difference) | {"decided": is_significant}
        screen.data(
            {
                "first": first,
                "second": second,
                "length": tokens,
                "measure": measure,
                "metrics": document,
            }
        )
        return
    trained = items[0].trained  # the trained context of the model, the same in all items
    place = f"{measure} at {in_trained(tokens, trained)}"  # such as "growth at 4T"
    for metric, difference in differences.items():
        screen.say(f"{place}, {first} minus {second}: {describe_proof(difference, metric)}.")


def describe_proof(proof: Proof, metric_name: str) -> str:
    """Return a measured difference in words, with its standard error and whether it is significant.

    - "-0.092 ± 0.012 nat, n = 12: significant"
    - "-0.010 ± 0.012 nat, n = 12: not significant, which takes 0.026", where 0.026 is the smallest
      significant difference (`proof.margin`).

    Args:
        proof: The difference of two rows, from `proof.count` paired numbers.
        metric_name: The measured quantity, such as "loss" or "accuracy".
    """
    # the difference, its standard error (None for a single cluster of numbers), and its unit
    metric = metric_of(metric_name)
    text = metric.difference(proof.difference)
    if proof.error is not None:
        text += f" ± {metric.error(proof.error)}"
    text += f" {metric.unit or metric_name}"
    is_in_percent = metric.share  # the unit does not say of what: add "(accuracy)"
    if is_in_percent:
        text += f" ({metric_name})"

    is_significant = proof.decided
    if is_significant:
        verdict = "significant"
    elif proof.margin is None:
        verdict = f"too few to test, at least {FEWEST} are needed"
    else:
        verdict = f"not significant, which takes {metric.value(proof.margin)}"
    return f"{text}, n = {proof.count}: {verdict}"


def _choose_length(items: Sequence[RecordItem], length: str, measure: str, file: Path) -> int:
    """Return the length that is compared, in tokens: the longest one unless one is named."""
    measured = {item.length for item in items if item.measure == measure}
    if not measured:
        known = ", ".join(sorted({item.measure for item in items}))
        raise UsageError(f"{file} has no {measure}; it has {known}")
    if not length:
        return max(measured)
    columns = parse_lengths(length, items[0].trained)
    if len(columns) != 1 or columns[0] not in measured:
        known = ", ".join(in_trained(column, items[0].trained) for column in sorted(measured))
        raise UsageError(f"--length {length} was not measured in {file}; choose one of {known}")
    return columns[0]


def _metrics(
    items: Sequence[RecordItem], measure: str, column: int, rows: Sequence[str], file: Path
) -> list[str]:
    """Return the metrics of a measure at a length, such as ["loss"]; refuse an unknown row."""
    measured = [item for item in items if item.measure == measure and item.length == column]
    known = list(dict.fromkeys(item.row for item in measured))
    for row in rows:
        if row not in known:
            raise UsageError(
                f"{file} has no row {row} with {measure} at {column:,} tokens; it has"
                f" {', '.join(known)}"
            )
    return list(dict.fromkeys(item.metric for item in measured))


@app.command("add", cls=Command, epilog=ADD_EXAMPLES)
@expand_options
def add_command(
    screen: Screen,
    file: FileArgument,
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            help="The folder of the record: docs/evidence/items in a checkout.",
            rich_help_panel=OUTPUT,
            metavar="FOLDER",
            parser=expand_home,
        ),
        Writes(),
    ] = RECORD,
) -> None:
    """Check a file of measurements, and add its items to the public record.

    Each item has the model, the method, the length and the name of a text, and not the text. Items
    that the record has already are left out, so that nothing counts twice.
    """
    items = read_measured(file)
    if not to.is_dir():
        raise UsageError(
            f"{to} is not a folder; run this in a checkout of ropeconv, or name its"
            " docs/evidence/items with --to"
        )
    items = _leave_out_known(items, to)
    if not items:
        screen.say(f"{to} has all items of {file} already.")
        return

    # a file for each model and factor, which a reader finds by its name
    models = sorted({item.model for item in items})
    factors = sorted({item.factor for item in items if item.factor is not None})
    name = "-".join([*models, *(f"{factor:g}x" for factor in factors)])
    place = to / f"{name.replace('/', '--')}.jsonl.gz"
    number = 2
    while place.exists():
        place = to / f"{name.replace('/', '--')}-{number}.jsonl.gz"
        number += 1
    write_items(items, place)

    rows = len({item.row for item in items})
    texts = len({item.text for item in items})
    if screen.as_json:
        screen.data(
            {
                "path": str(place),
                "items": len(items),
                "models": models,
                "rows": rows,
                "texts": texts,
            }
        )
        return
    screen.say(
        f"{place} has {counted(len(items), 'item')} of {counted(rows, 'row')} and"
        f" {counted(texts, 'text')} with {', '.join(models)}."
    )
    screen.note("`python -m scripts.pages` computes the tables and pages that follow from it.")


def _leave_out_known(items: Sequence[RecordItem], folder: Path) -> list[RecordItem]:
    """Return the measurements that the public record does not have yet.

    Args:
        items: The measurements of a file, each one number.
        folder: The public record, a folder of .jsonl and .jsonl.gz files.

    Raises:
        UsageError: The record has another number for the same model, row, text and length.
    """
    new = {_key(item): item for item in items}
    for path in sorted(folder.glob("*.jsonl*")):
        for item in read_items(path):
            other = new.pop(_key(item), None)
            if other is not None and other.value != item.value:
                raise UsageError(
                    f"{path} has {item.value:g} for {item.row} of {item.model} on {item.text} at"
                    f" {item.length:,} tokens, and the file has {other.value:g}; correct one of"
                    " them"
                )
    return list(new.values())


def _key(item: RecordItem) -> tuple[object, ...]:
    """Return the key that is equal for two items of one measurement."""
    model = item.identity or item.model
    return model, item.row, item.measure, item.metric, item.length, item.runtime, item.place
