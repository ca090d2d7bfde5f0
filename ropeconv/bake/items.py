"""The public record of measurements: single numbers, from which every claim can be computed again.

A record is a table in JSON lines, which gzip compresses (`NAME.jsonl.gz`): one line is one number
of one model, method and text or question. `pandas.read_json(path, lines=True)` reads it too.
`read_items` and `write_items` are the functions to read first.
"""

import gzip
import json
import math
import re
import zlib
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import msgspec

from ..errors import BadSource, UsageError
from ..formats.drafts import write_file
from ..formats.files import read_bytes
from ..formats.jsontext import JsonObject
from ..inspection.receipts.metrics import metric_of
from ..rope.errors import RecipeError, RopeconvError
from ..rope.lengths import MOST_TOKENS
from ..rope.methods.method import REGISTRY
from ..rope.recipe import Recipe, parse_recipe, resolved_factor
from .evidence import BASE
from .proof import Proof, prove

SUFFIXES = (".jsonl.gz", ".jsonl")
"""How the name of a record ends."""
LONGEST = 256 << 20
"""Bytes of an uncompressed record."""

LOSS = frozenset({"loss"})
QUESTION = frozenset({"accuracy", "exact", "log_prob"})
METRICS = {
    "growth": LOSS,
    "longppl": LOSS,
    "position": LOSS,
    "sliding": LOSS,
    "passkey": QUESTION,
    "niah": QUESTION,
    "keys": frozenset({"exact", "log_prob"}),
    "latest": frozenset({"exact", "log_prob"}),
    "needle": frozenset({"exact"}),
    "speed": frozenset({"tokens_per_second", "memory"}),
}
"""The metrics of each measure: those of `ropeconv eval`, and needle, which scripts/research has.

Tasks of lm_eval have metrics of their own.
"""
LM_EVAL = "lm-eval:"
"""How the name of a measure begins that is a task of lm_eval."""
RECIPE = "recipe:"
"""How the name of a row begins whose method is in a file."""

MOST_NATS = 100.0
"""The largest loss of a token. A model that guesses among 200,000 tokens loses 12.2 nats."""
ROUNDING = 1e-4
"""By how much a loss may be below 0, since float32 is rounded."""
BOUNDS = {
    "loss": (0.0, MOST_NATS),
    "log_prob": (-MOST_NATS, 0.0),
    "exact": (0.0, 1.0),
    "accuracy": (0.0, 1.0),
    "tokens_per_second": (0.0, 1e9),
    "memory": (0.0, 1e6),
}
"""The lowest and the highest value of a metric."""
LARGEST_VALUE = 1e100
"""The largest number of any other metric, whose square float64 still has."""
LARGEST_FACTOR = 10_000.0
"""The largest factor of a method."""
LONGEST_NAME = 500
"""The most characters of a name, such as that of a text."""
UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which change what a terminal shows."""


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

    @property
    def subject(self) -> tuple[str, str]:
        """The name and the digest of the model, empty where the item does not have them."""
        return "", ""


class RecordItem(Item, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item with the model and the run that it is from: a line of the record."""

    model: str
    """The model."""

    identity: str = ""
    """The sha256 of the model, as journals have it; empty in the first files of the record."""

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
        return self.model, self.dtype, self.sample, self.text, self.window, self.depth

    @property
    def subject(self) -> tuple[str, str]:
        """The name and the digest of the model."""
        return self.model, self.identity


def compare_rows(
    items: Iterable[Item], first: str, second: str, length: int, measure: str, metric: str
) -> Proof | None:
    """Return by how much a method is better than another one, on texts that both were measured on.

    A row of an evaluation is a method, such as "yarn:4", or the unchanged model, "base". An item is
    one measured number of a row, on one window of a text or one question: the loss of "yarn:4" on
    window 3 of a book, say. It is compared with that of the other row on the same window.

    Args:
        items: Items of these rows and others, all of one model.
        first: The name of a row.
        second: The row that is subtracted.
        length: The length in tokens.
        measure: The measure, such as "growth" or "needle".
        metric: The metric of the measure, such as "loss" or "exact".

    Returns:
        The paired difference; None where the rows have no item in common.

    Raises:
        UsageError: The rows have items of several models in common.
    """
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
    first_items = _of_same_model(first_items, second_items)
    is_share = metric_of(metric).share  # of right answers, which has a test of its own
    return prove(first_items, second_items, is_share)


def _of_same_model(
    first_items: dict[Hashable, Item], second_items: dict[Hashable, Item]
) -> dict[Hashable, Item]:
    """Return the items of a row that another row has too, measured on the same model.

    Args:
        first_items: Items of a row by their place.
        second_items: Items of the other row.

    Raises:
        UsageError: They are of several models.
    """
    common: dict[Hashable, Item] = {}
    names: set[str] = set()
    digests: set[str] = set()
    for place, item in first_items.items():
        if place not in second_items:
            continue
        name, digest = item.subject
        _, other_digest = second_items[place].subject
        if digest and other_digest and digest != other_digest:
            continue
        common[place] = item
        names.add(name)
        digests |= {digest, other_digest}
    digests.discard("")  # the first files of the record have no digests

    if len(names) > 1:
        raise UsageError(
            f"the items are of several models, {join_names(names)}; compare those of one model"
        )
    if len(digests) > 1:
        raise UsageError(
            f"the items of {join_names(names)} are of models with different digests; compare those"
            " of one model"
        )
    return common


def join_names(names: Iterable[str]) -> str:
    """Return names for a message, sorted: "a, b"."""
    return ", ".join(sorted(names))


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
            reason = _not_a_number(line) or str(problem)
            raise BadSource(
                f"{path} is not a record of items: line {number}: {reason}; give a file that"
                " `ropeconv eval -o NAME.jsonl.gz` wrote"
            ) from None
    check_items(items, str(path))
    return items


def _not_a_number(line: bytes) -> str:
    """Return that a line has NaN or an infinite number, which JSON does not have; else empty."""

    def refuse(name: str) -> NoReturn:
        raise BadSource(f"it has {name}, which is not a finite number")

    # Python's module reads these names, and msgspec only says which byte it cannot read
    try:
        json.loads(line, parse_constant=refuse)
    except BadSource as problem:
        return str(problem)
    except (ValueError, RecursionError):
        return ""
    return ""


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
        BadSource: There is no item, a number is impossible, an item is there twice, or a model has
            two trained lengths.
    """
    if not items:
        raise BadSource(f"{name} has no item; give a file that `ropeconv eval -o` wrote")
    keys_before: set[Hashable] = set()
    trained_lengths: dict[str, int] = {}
    for number, item in enumerate(items, 1):
        # what was measured: only one item may have it
        key = (item.row, item.measure, item.metric, item.length, item.place)
        trained = trained_lengths.setdefault(item.model, item.trained)
        problem = _problem_of(item)
        if not problem and key in keys_before:
            problem = f"{item.row} has this {item.measure} of {item.text} twice"
        if not problem and trained != item.trained:
            problem = (
                f"{item.model} is trained for {item.trained:,} tokens here, and for {trained:,} in"
                " an item before"
            )
        if problem:
            raise BadSource(f"{name}, item {number}: {problem}; run `ropeconv eval` again")
        keys_before.add(key)


def _problem_of(item: RecordItem) -> str:
    """Return the mistake in an item, in words; empty for a right one."""
    return (
        _problem_of_names(item)
        or _problem_of_sizes(item)
        or _problem_of_value(item.metric, item.value)
        or _problem_of_measure(item.measure, item.metric)
        or _problem_of_method(item.row, item.method, item.factor, item.trained)
    )


def _problem_of_names(item: RecordItem) -> str:
    """Return the mistake in the names of an item; empty without one."""
    if not (item.model and item.row and item.text):
        return "the name of the model, the row or the text is empty"
    names = {
        "model": item.model,
        "identity": item.identity,
        "row": item.row,
        "method": item.method,
        "measure": item.measure,
        "metric": item.metric,
        "text": item.text,
        "on_top": item.on_top,
        "runtime": item.runtime,
        "dtype": item.dtype,
        "sample": item.sample,
    }
    for field, name in names.items():
        if UNSAFE.search(name):
            return f"its {field} has a control character, {name[:40]!a}"
        if len(name) > LONGEST_NAME:
            return f"its {field} has {len(name):,} characters, and the limit is {LONGEST_NAME}"
    return ""


def _problem_of_sizes(item: RecordItem) -> str:
    """Return the mistake in the lengths and places of an item; empty without one."""
    if item.length < 1 or item.trained < 1 or item.weight < 1:
        return "a length or weight is below 1"
    if item.length > MOST_TOKENS or item.trained > MOST_TOKENS:
        return f"a length is above {MOST_TOKENS:,} tokens"
    if item.weight > item.length:
        return f"it is a mean over {item.weight:,} of {item.length:,} tokens"
    if item.window < 0 or item.sliding_window < 0:
        return "its window is below 0"
    if item.depth is not None and not 0 <= item.depth <= 1:
        return f"its depth is {item.depth:g}, and a depth is from 0 to 1"
    return ""


def _problem_of_measure(measure: str, metric: str) -> str:
    """Return that a known measure has another metric or a value; empty for a right one.

    Measures of other packages have metrics of their own.
    """
    name, colon, stride = measure.partition(":")
    if name not in METRICS:
        return ""
    if colon and not (name == "sliding" and stride.isdecimal()):
        return f"its measure {measure} is not known"
    if metric not in METRICS[name]:
        return f"its metric is {metric}, and {name} has {', '.join(sorted(METRICS[name]))}"
    return ""


def unknown_measures(items: Iterable[RecordItem]) -> list[str]:
    """Return the measures that neither `ropeconv eval` nor lm_eval has, such as a plugin's."""
    unknown = dict[str, None]()
    for item in items:
        name, _, _ = item.measure.partition(":")
        if name not in METRICS and not item.measure.startswith(LM_EVAL):
            unknown[item.measure] = None
    return list(unknown)


def _problem_of_value(metric: str, value: float) -> str:
    """Return that the value of a metric is impossible; empty for a possible one."""
    if not math.isfinite(value):
        return "its value is not a finite number"
    low, high = BOUNDS.get(metric, (-LARGEST_VALUE, LARGEST_VALUE))
    if metric_of(metric).share:
        if low <= value <= high:
            return ""
        return f"its {metric} is {value:g}, and a share is from 0 to 1"
    if low - ROUNDING <= value <= high + ROUNDING:
        return ""
    return f"its {metric} is {value:g}, and it can be from {low:g} to {high:g}"


@lru_cache(4096)  # a record has thousands of items of each row
def _problem_of_method(row: str, method: str, factor: float | None, trained: int) -> str:
    """Return that the method of an item is not that of its row; empty where it is.

    Args:
        row: The row, such as "yarn:4", "recipe:FILE", or an output of `apply` by its own name.
        method: The method of the item.
        factor: The factor of the item.
        trained: The trained context in tokens, by which lengths are factors.
    """
    if factor is not None and not 0 < factor <= LARGEST_FACTOR:
        return f"its factor is {factor:g}, and a factor is above 0 and at most {LARGEST_FACTOR:g}"
    other_method = f"its row is {row}, and its method {method}"
    if BASE in (row, method):
        if row != method:
            return other_method
        return "" if factor is None else "its row is base, which has no factor"
    is_known = method in REGISTRY
    if not is_known and row == method and factor is None:  # an output or a server by its name
        return ""
    if not is_known:
        return f"its method {method} is not known"
    if row.startswith(RECIPE):
        return ""

    method_of_row, _, _ = row.partition(":")
    if method_of_row != method:
        return other_method

    # the row is the text of a recipe, from which the factor follows
    try:
        recipe = parse_recipe(row)
    except RopeconvError:  # piecewise:4 of scripts/research, whose value is a file for `eval`
        return ""
    _, factor_of_row = method_and_factor(recipe.to_dict(), trained, trained)
    if factor_of_row is None:  # such as theta-for:4, whose value has another name
        return ""
    # a length is a multiple of the context before the scaling of the model, which may be shorter
    # than the trained one
    has_length = recipe.method.length is not None and not recipe.on_top
    is_possible = factor is not None and (
        math.isclose(factor, factor_of_row) or (has_length and factor > factor_of_row)
    )
    return "" if is_possible else f"its row is {row}, and its factor {factor}"


def method_and_factor(
    recipe: JsonObject, original_context: int, declared: int
) -> tuple[str, float | None]:
    """Return the method of a recipe and its factor, where it has one: ("yarn", 4.0) for yarn:4.

    Args:
        recipe: The recipe, as `Recipe.to_dict` gives it.
        original_context: The context of the model before its scaling, in tokens.
        declared: Its context with its scaling, in tokens.

    Returns:
        The factor is None where it is a length within the context that it is divided by, as on a
        server that accepts more tokens than that.
    """
    factor = recipe.get("parameters", {}).get("factor")
    if isinstance(factor, str):  # a length, such as 128k
        try:
            factor = resolved_factor(Recipe.from_dict(recipe), original_context, declared)
        except RecipeError:
            factor = None
    return recipe["method"], factor
