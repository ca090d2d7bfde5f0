"""The report of a validation as one HTML file: `write_validation_report`.

`origin` and `changed_keys` are for other reports too: how a report was made, and the keys that an
output and its source have differently.
"""

import json
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadSource
from ..formats.drafts import write_file
from ..formats.gguf.header import GgufHeader
from ..formats.kind import is_gguf
from ..formats.package_data import render
from ..inspection.kv_cache import described_size, now
from ..inspection.receipts.folder import OriginalSource
from ..inspection.receipts.gguf import original_of
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import facts_of, read_receipt
from ..inspection.support import group_by_status
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import RECEIPT
from ..rope.errors import RopeconvError, counted
from ..validate.validation import Validation
from ..version import __version__
from .plot_style import drawn
from .validation_plots import validation_pictures


def write_validation_report(result: Validation, baked: Path, against: str, path: Path) -> None:
    """Write the report of a validation: result, recipe, changed keys, runtimes, plots, all numbers.

    Args:
        result: The validation.
        baked: The output.
        against: The source, as the user named it.
        path: The HTML file.

    Raises:
        RopeconvError: If matplotlib is not installed.
    """
    # an output of another program has no receipt, and these parts of the page are left out
    from_receipt: dict[str, Any] = {"recipe": {}, "changes": (), "runtimes": (), "evaluations": ()}
    receipt = _read_receipt_if_there(baked)
    if receipt is not None:
        from_receipt["recipe"] = facts_of(receipt)
        from_receipt["changes"] = changed_keys(baked, receipt)
        from_receipt["runtimes"] = group_by_status(receipt.runtimes, receipt.source.family)
        from_receipt["evaluations"] = receipt.evaluations

    page = render(
        "report.html.jinja",
        result=result,
        baked=str(baked),
        against=against,
        facts=_facts_of_run(result, baked, against) | origin(),
        gguf=is_gguf(baked),
        pictures=drawn(validation_pictures(result)),
        **from_receipt,
    )
    write_file(path, page)


def _facts_of_run(result: Validation, baked: Path, against: str) -> dict[str, str]:
    """Return the rows of the report's table on the run itself.

    Args:
        result: The validation.
        baked: The output.
        against: The source, as the user named it.
    """
    runtime = result.runtime
    if result.transformers:
        runtime += f" {result.transformers}"
    tokens = f"{result.tokens} in each spread run"
    if result.length:
        tokens += f", {result.length:,} in one"
    speed = ", ".join(f"{name} {value:,.0f}" for name, value in result.speed.items())
    return {
        "Output": _with_size(str(baked)),
        "Source": _with_size(against),
        "Runtime": runtime,
        "Ran on": f"{result.device}, {result.dtype}",
        "Tokens": tokens,
        "Tokens per second": speed or "not measured",
        "Seed": str(result.seed),
        "Schedule": result.digest,
    }


def _with_size(place: str) -> str:
    """Return the name of a model with its size, where it is on this disk."""
    size = described_size(Path(place))
    return f"{place}, {size}" if size else place


def origin() -> dict[str, str]:
    """Return the facts on how a report was made."""
    return {
        "Made with": (
            f"ropeconv {__version__}, Python {platform.python_version()}, {platform.platform()}"
        ),
        "Written": now(),
        "Command": "ropeconv " + " ".join(sys.argv[1:]),
    }


def _read_receipt_if_there(baked: Path) -> Receipt | None:
    """Return the receipt of an output; None if it has none that can be read."""
    try:
        return read_receipt(baked)
    except (BadSource, OSError):
        return None


LONGEST = 100
"""Characters of a value."""
SHORT = 8
"""Entries of a list that is shown whole."""


@dataclass(frozen=True)
class ChangedKey:
    """A key of a config or header that differs."""

    name: str
    """With dots between levels."""

    before: str
    """Its value as text; empty where it was absent."""

    after: str
    """Its value as text; empty where it is absent."""


def changed_keys(baked: Path, receipt: Receipt) -> tuple[ChangedKey, ...]:
    """Return the keys that differ between an output and its first source.

    There are none if that had another format, or if the receipt does not have its settings.

    Args:
        baked: The output.
        receipt: The record of how it was made, which has the settings of the source.
    """
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    try:
        output = open_source(str(baked))
        if isinstance(output, GgufSource):
            before = _keys_of_header(original_of(output.file, receipt).header)
            after = _keys_of_header(output.file.header)
        elif receipt.original is not None and receipt.original.folder is not None:
            first = OriginalSource(output, receipt, receipt.original.folder)
            before = dict(_flatten(first.config()))
            after = dict(_flatten(output.config()))
    except (RopeconvError, OSError):
        return ()

    changes = []
    for name in dict.fromkeys([*before, *after]):
        old = before.get(name, "")
        new = after.get(name, "")
        is_new_or_gone = name not in before or name not in after
        if is_new_or_gone or old != new:
            changes.append(ChangedKey(name, old, new))
    return tuple(changes)


def _keys_of_header(header: GgufHeader) -> dict[str, str]:
    """Return the keys of a GGUF file except the receipt, with their values as text."""
    keys = {}
    for name, value in header.values.items():
        if name == RECEIPT:
            continue
        if value.count() > SHORT:  # such as a vocabulary, which is not decoded
            keys[name] = f"{value.count()} values"
        else:
            keys[name] = _as_text(value.decode())
    return keys


def _flatten(data: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a config with dots between levels, and their values as text."""
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{above}{name}.")
        else:
            yield above + name, _as_text(value)


def _as_text(value: object) -> str:
    """Return a value as JSON, shortened if it is long."""
    if isinstance(value, list) and len(value) > SHORT:
        first = json.dumps(value[0])
        last = json.dumps(value[-1])
        return f"{counted(len(value), 'value')}, {first} to {last}"
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > LONGEST:
        return f"{text[:LONGEST]}..."
    return text
