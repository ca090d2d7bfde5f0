"""`ropeconv evidence compare` and `ropeconv evidence add`: the items of stored evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ropeconv.bake.items import (
    RecordItem,
    check_items,
    compare_rows,
    is_record,
    join_names,
    read_items,
    unknown_measures,
    write_items,
)
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
SAME = 1e-4
"""By how much two numbers may differ and count as one: a run on another device rounds otherwise."""
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
        BadSource: The file is neither, or an item of it is wrong.
    """
    if is_record(path) or path.suffix == ".gz":
        return read_items(path)
    items = record_items(read_result(path))
    check_items(items, str(path))
    return items


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
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="The model, in a file with several.",
            rich_help_panel=LENGTH,
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Compare two rows of a stored evaluation on the items that both have.

    A difference counts by the rule of docs/evaluating.md, as in the marks of `eval`.
    """
    # the file has one number for each row (such as yarn:4), measure, length, text and window
    items = _choose_model(read_measured(file), model, file)
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
                "model": items[0].model,
                "first": first,
                "second": second,
                "length": tokens,
                "measure": measure,
                "metrics": document,
            }
        )
        return
    # all items are of one model, and so of one trained context: "growth at 4T of tiny"
    place = f"{measure} at {in_trained(tokens, items[0].trained)} of {items[0].model}"
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


def _choose_model(items: Sequence[RecordItem], model: str, file: Path) -> list[RecordItem]:
    """Return the items of one model; refuse a file of several where none is named."""
    names = {item.model for item in items}
    known = join_names(names)
    if model and model not in names:
        raise UsageError(f"{file} has no items of {model}; it has {known}")
    if not model and len(names) > 1:
        raise UsageError(
            f"{file} has items of several models; choose one with --model NAME: {known}"
        )
    return [item for item in items if model in ("", item.model)]


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
    unknown = unknown_measures(items)
    if unknown:
        raise UsageError(
            f"{file} has items of {', '.join(unknown)}, which readers of the record do not know;"
            " leave those out"
        )
    record = {path: read_items(path) for path in sorted(to.glob("*.jsonl*"))}
    recorded = list(chain.from_iterable(record.values()))
    items = _name_as_recorded(items, recorded, file)
    _refuse_other_models(items, recorded, file, to)
    items = _leave_out_known(items, record)
    _refuse_without_digest(items, file)
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


def _name_as_recorded(
    items: Sequence[RecordItem], recorded: Sequence[RecordItem], file: Path
) -> list[RecordItem]:
    """Return measurements with the names that the public record has for their models.

    A model of another name and the same digest is the same model, say in a folder that was renamed.

    Args:
        items: The measurements of a file.
        recorded: The public record.
        file: The file, for the message.

    Raises:
        UsageError: The file has one model under two names.
    """
    names_in_file: dict[str, str] = {}  # by digest
    for item in items:
        name = names_in_file.setdefault(item.identity, item.model)
        if item.identity and name != item.model:
            raise UsageError(
                f"{file} has one model under two names, {name} and {item.model}; name it once"
            )

    recorded_names: dict[str, str] = {}  # by the name in the file
    for item in recorded:
        if item.identity and item.identity in names_in_file:
            recorded_names[names_in_file[item.identity]] = item.model
    named = []
    for item in items:
        name = recorded_names.get(item.model, item.model)
        named.append(msgspec.structs.replace(item, model=name))
    return named


def _leave_out_known(
    items: Sequence[RecordItem], record: Mapping[Path, Sequence[RecordItem]]
) -> list[RecordItem]:
    """Return the measurements that the public record does not have yet.

    Args:
        items: The measurements of a file, each one number.
        record: The items of the public record, by file.

    Raises:
        UsageError: The record has another number or other facts for the same measurement.
    """
    new = {_key(item): item for item in items}
    for path, recorded in record.items():
        for item in recorded:
            other = new.pop(_key(item), None)
            field = "" if other is None else _differing_field(item, other)
            if other is not None and field:
                raise UsageError(
                    f"{path} has the {field} {_described(item, field)} for {item.row} of"
                    f" {item.model} on {item.text} at {item.length:,} tokens, and the file has"
                    f" {_described(other, field)}; correct one of them"
                )
    return list(new.values())


def _key(item: RecordItem) -> tuple[object, ...]:
    """Return the key that is equal for two items of one measurement.

    Another runtime or another precision is another measurement.
    """
    return item.row, item.measure, item.metric, item.length, item.runtime, item.place


def _differing_field(item: RecordItem, other: RecordItem) -> str:
    """Return the field in which two items of one measurement differ; empty where they are equal."""
    for field in ("trained", "method", "factor", "on_top", "sliding_window", "weight"):
        if getattr(item, field) != getattr(other, field):
            return field
    if item.identity and other.identity and item.identity != other.identity:
        return "identity"
    if not math.isclose(item.value, other.value, rel_tol=SAME, abs_tol=SAME):
        return "value"
    return ""


def _described(item: RecordItem, field: str) -> str:
    """Return the value of a field for a message."""
    value = getattr(item, field)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) or "''"


def _refuse_other_models(
    items: Sequence[RecordItem], recorded: Sequence[RecordItem], file: Path, folder: Path
) -> None:
    """Refuse measurements of a model whose name another model has.

    Args:
        items: The measurements of a file.
        recorded: The public record.
        file: Their file, for messages.
        folder: The folder of the record, for messages.

    Raises:
        UsageError: A name has two digests or two trained contexts.
    """
    for name in sorted({item.model for item in items}):
        own = [item for item in items if item.model == name]
        known = [item for item in recorded if item.model == name]

        # the first files of the record have no digests
        digests = {item.identity for item in own} - {""}
        known_digests = {item.identity for item in known} - {""}
        is_other = bool(digests - known_digests) and len(digests | known_digests) > 1
        if is_other:
            raise UsageError(
                f"{file} and {folder} have several models of the name {name}, with the digests"
                f" {_short_digests(digests | known_digests)}; give the folder of the model another"
                " name and run `ropeconv eval` again"
            )
        lengths = {item.trained for item in (*own, *known)}
        if len(lengths) > 1:
            shortest = min(lengths)
            longest = max(lengths)
            raise UsageError(
                f"{file} and {folder} have two trained contexts of {name}, {shortest:,} and"
                f" {longest:,} tokens; correct one of them"
            )


def _refuse_without_digest(items: Sequence[RecordItem], file: Path) -> None:
    """Refuse new measurements of a model whose digest is not known.

    Those of servers have none, nor those of an output whose source was not found.
    """
    for item in items:
        if not item.identity:
            raise UsageError(
                f"{file} has no digest of {item.model}; run `ropeconv eval` on the checkpoint, or"
                " on an output with --against SOURCE"
            )


def _short_digests(digests: set[str]) -> str:
    """Return digests for a message, each by its beginning."""
    return join_names(digest[:12] for digest in digests)
