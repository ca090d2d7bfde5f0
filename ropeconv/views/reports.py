"""Writes the report of an evaluation as one HTML file, and its pictures as a file."""

import json
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadSource
from ..formats.drafts import write_file
from ..formats.gguf.header import GgufHeader
from ..formats.kind import is_gguf
from ..formats.package_data import render
from ..inspection.kv_cache import described_size, now
from ..inspection.receipts.folder import OriginalSource
from ..inspection.receipts.gguf import earlier
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


def origin() -> dict[str, str]:
    """The facts on how a report was made."""
    return {
        "Made with": (
            f"ropeconv {__version__}, Python {platform.python_version()}, {platform.platform()}"
        ),
        "Written": now(),
        "Command": "ropeconv " + " ".join(sys.argv[1:]),
    }


def write_validation_report(result: Validation, baked: Path, against: str, path: Path) -> None:
    """Writes the report of a validation in one HTML file: result, recipe, changed keys, runtimes,
    plots, all numbers.

    against: how the user named the source. Raises RopeconvError without matplotlib.
    """
    runtime = result.runtime + (f" {result.transformers}" if result.transformers else "")
    speed = ", ".join(f"{name} {value:,.0f}" for name, value in result.speed.items())
    receipt = _receipt(baked)
    facts = {
        "Output": ", ".join(filter(None, [str(baked), described_size(baked)])),
        "Source": ", ".join(filter(None, [against, described_size(Path(against))])),
        "Runtime": runtime,
        "Ran on": f"{result.device}, {result.dtype}",
        "Tokens": (
            f"{result.tokens} in each spread run"
            + (f", {result.length:,} in one" if result.length else "")
        ),
        "Tokens per second": speed or "not measured",
        "Seed": str(result.seed),
        "Schedule": result.digest,
    } | origin()
    page = render(
        "report.html.jinja",
        result=result,
        baked=str(baked),
        against=against,
        facts=facts,
        recipe=facts_of(receipt) if receipt else {},
        changes=changed_keys(baked, receipt) if receipt else (),
        gguf=is_gguf(baked),
        runtimes=group_by_status(receipt.runtimes, receipt.source.family) if receipt else (),
        pictures=drawn(validation_pictures(result)),
        evaluations=receipt.evaluations if receipt else (),
    )
    write_file(path, page)


def _receipt(baked: Path) -> Receipt | None:
    """The receipt of an output; None where it has none that can be read."""
    try:
        return read_receipt(baked)
    except (BadSource, OSError):
        return None


LONGEST = 100
"""Characters of a value."""


@dataclass(frozen=True)
class ChangedKey:
    """A key with its values as text. name: with dots between levels. before, after: empty if it is
    absent.
    """

    name: str
    before: str
    after: str


def changed_keys(baked: Path, receipt: Receipt) -> tuple[ChangedKey, ...]:
    """Return the keys that differ between an output and its first source; none if that had another
    format.
    """
    before = dict[str, str]()
    after = dict[str, str]()
    try:
        source = open_source(str(baked))
        if isinstance(source, GgufSource):
            before = _header(earlier(source.file, receipt).header)
            after = _header(source.file.header)
        elif receipt.original is not None and receipt.original.folder is not None:
            first = OriginalSource(source, receipt, receipt.original.folder)
            before = dict(_flat(first.config()))
            after = dict(_flat(source.config()))
    except (RopeconvError, OSError):
        return ()
    names = [
        name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)
    ]
    return tuple(ChangedKey(name, before.get(name, ""), after.get(name, "")) for name in names)


def _header(header: GgufHeader) -> dict[str, str]:
    """Return the keys of a GGUF file except the receipt; long arrays, such as vocabularies, by
    their length.
    """
    return {
        name: f"{value.count()} values" if value.count() > 8 else _shown(value.decode())
        for name, value in header.values.items()
        if name != RECEIPT
    }


def _flat(data: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, list) and len(value) > 8:
        return f"{counted(len(value), 'value')}, {json.dumps(value[0])} to {json.dumps(value[-1])}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
