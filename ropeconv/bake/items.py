"""The public record of measurements: single numbers, from which every claim can be computed again.

A record is a table in JSON lines, which gzip compresses (`NAME.jsonl.gz`): one line is one number
of one model, method and text or question. `pandas.read_json(path, lines=True)` reads it too.
`read_items` and `write_items` are the functions to read first.
"""

import gzip
import math
import zlib
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import msgspec

from ..errors import BadSource, UsageError
from ..formats.drafts import write_file
from ..formats.files import read_bytes
from .proof import Proof, prove

SUFFIXES = (".jsonl.gz", ".jsonl")
"""How the name of a record ends."""
LONGEST = 256 << 20
"""Bytes of an uncompressed record."""


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of one row: the loss of some tokens, or the answer to a question."""

    row: str
    """The row of the evaluation: `base`, `yarn:4` or `yarn:4:beta_fast=16`."""

    measure: str
    """The measure of `ropeconv eval`, such as growth or passkey."""

    metric: str
    """The measured quantity, such as loss (nats per token) or exact (1 for a right answer)."""

    length: int
    """The tokens that the model reads."""

    text: str
    """The name of the text."""

    window: int
    """The place in the text, or the number of the question in it."""

    depth: float | None = None
    """The place of the fact that is asked for, from 0 (the beginning) to 1."""

    value: float
    """The number."""

    weight: int = 1
    """How many tokens it is a mean over, where items differ in that."""

    @property
    def document(self) -> str:
        """The text, under the name that the rule of proof has for it."""
        return self.text

    @property
    def place(self) -> Hashable:
        """The key by which items of two rows at one length are paired."""
        return self.text, self.window, self.depth


class RecordItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item with the model and the run that it is from: a line of the record."""

    model: str
    """The model."""

    identity: str = ""
    """The sha256 of the model, as journals have it."""

    trained: int
    """The trained context in tokens."""

    method: str
    """The method; `base` for the unchanged model."""

    factor: float | None = None
    """The factor of the method; None for methods without one."""

    on_top: str = ""
    """The kind of the scaling that the model was trained with, on which the method is put."""

    sliding_window: int = 0
    """The tokens that most layers see, in a model with other layers that see all tokens.

    0 for any other model.
    """

    runtime: str = ""
    """The runtime that computed it."""

    dtype: str = ""
    """The precision in which it ran."""

    sample: str = ""
    """A digest of the texts of the run and of what was read of them.

    Items of two runs are about the same tokens where it is equal.
    """

    @property
    def place(self) -> Hashable:
        """The key by which items of two rows at one length are paired."""
        return self.sample, self.text, self.window, self.depth


def compare_rows(
    items: Iterable[Item], first: str, second: str, length: int, measure: str, metric: str
) -> Proof | None:
    """Return by how much a method is better than another one, on texts that both were measured on.

    A row of an evaluation is a method, such as "yarn:4", or the unchanged model, "base". An item is
    one measured number of a row, on one window of a text or one question: the loss of "yarn:4" on
    window 3 of a book, say. It is compared with that of the other row on the same window.

    Args:
        items: Items of these rows and others.
        first: The name of a row.
        second: The row that is subtracted.
        length: The length in tokens.
        measure: The measure, such as "growth" or "needle".
        metric: The metric of the measure, such as "loss" or "exact".

    Returns:
        The paired difference; None where the rows have no item in common.
    """
    from ..inspection.receipts.metrics import metric_of

    # the items of both rows by their place (text, window and depth), by which they are paired
    first_items: dict[Hashable, Item] = {}
    second_items: dict[Hashable, Item] = {}
    for item in items:
        if (item.measure, item.metric, item.length) != (measure, metric, length):
            continue
        if item.row == first:
            first_items[item.place] = item
        if item.row == second:
            second_items[item.place] = item
    is_share = metric_of(metric).share  # of right answers, which has a test of its own
    return prove(first_items, second_items, is_share)


def is_record(path: Path) -> bool:
    """Whether the name of a file is that of a record."""
    return path.name.endswith(SUFFIXES)


def write_items(items: Sequence[RecordItem], path: Path) -> None:
    """Write a record. The same items always give the same bytes.

    Raises:
        OSError: The file cannot be written.
    """
    encoder = msgspec.json.Encoder()
    data = encoder.encode_lines(items)
    if path.name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    write_file(path, data)


def read_items(path: Path) -> list[RecordItem]:
    """Read the measured numbers in a file that `ropeconv eval -o NAME.jsonl.gz` wrote.

    Each item is a number of one method, on one window of a text or one question.

    Raises:
        UsageError: The file cannot be read.
        BadSource: The file is not a record, or an item of it is wrong.
    """
    try:
        data = read_bytes(path, str(path))
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}); give a file that `ropeconv eval -o"
            " NAME.jsonl.gz` wrote"
        ) from None
    is_gzip = data.startswith(b"\x1f\x8b")
    if is_gzip:
        data = _decompress(data, path)

    # a JSON object on each line
    decoder = msgspec.json.Decoder(RecordItem)
    items = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            items.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            raise BadSource(
                f"{path} is not a record of items: line {number}: {problem}; give a file that"
                " `ropeconv eval -o NAME.jsonl.gz` wrote"
            ) from None
    check_items(items, str(path))
    return items


def _decompress(data: bytes, path: Path) -> bytes:
    """Return the content of a gzip file, which may be at most LONGEST bytes."""
    try:
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        content = inflater.decompress(data, LONGEST + 1)
    except zlib.error as problem:
        raise BadSource(f"{path} is damaged ({problem}); make or download it again") from None
    if len(content) > LONGEST:
        raise BadSource(f"{path} has more than {LONGEST:,} bytes; split it by model")
    if not inflater.eof:
        raise BadSource(f"{path} ends too early; make or download it again")
    return content


def check_items(items: Sequence[RecordItem], name: str) -> None:
    """Refuse a record whose items do not fit together.

    Args:
        items: The items, each a measured number of one window or question.
        name: The name of the file, for the message.

    Raises:
        BadSource: There is no item, a number is impossible, or an item is there twice.
    """
    if not items:
        raise BadSource(f"{name} has no item; give a file that `ropeconv eval -o` wrote")
    keys_before: set[Hashable] = set()
    for number, item in enumerate(items, 1):
        # what was measured: only one item may have it
        key = (item.model, item.row, item.measure, item.metric, item.length, item.place)
        if key in keys_before:
            problem = f"{item.row} has this {item.measure} of {item.text} twice"
        else:
            problem = _problem_of(item)
        if problem:
            raise BadSource(f"{name}, item {number}: {problem}; run `ropeconv eval` again")
        keys_before.add(key)


def _problem_of(item: RecordItem) -> str:
    """Return the mistake in an item, in words; empty for a right one."""
    if not (item.model and item.row and item.text):
        return "the name of the model, the row or the text is empty"
    if not math.isfinite(item.value):
        return "its value is not a finite number"
    if item.metric in ("exact", "accuracy") and not 0 <= item.value <= 1:
        return f"its {item.metric} is {item.value:g}, and a share is from 0 to 1"
    if item.length < 1 or item.trained < 1 or item.weight < 1:
        return "a length or weight is below 1"
    if item.depth is not None and not 0 <= item.depth <= 1:
        return f"its depth is {item.depth:g}, and a depth is from 0 to 1"
    if (item.method == "base") != (item.row == "base"):
        return f"its row is {item.row}, and its method {item.method}"
    return ""
