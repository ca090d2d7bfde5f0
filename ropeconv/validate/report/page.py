"""Writes the report of a validation as one HTML file, and its plots as a picture."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from ...errors import BadSource
from ...formats.template import render
from ...inspection.evidence import described_size, now
from ...pictures.page import drawn
from ...pictures.style import write
from ...receipts import Receipt, read_receipt
from ...receipts.changed_keys import changed_keys
from ...receipts.facts import facts_of
from ...runtimes.grouping import grouped
from ...version import __version__
from ..rule.validation import Validation
from .plots import figure, pictures

__all__ = ["write_plot", "write_report"]


def write_plot(result: Validation, path: Path) -> None:
    """Writes the plots of a validation to a .png or .svg file. Raises RopeconvError without matplotlib."""
    write(figure(result), path)


def write_report(result: Validation, baked: Path, against: str, path: Path) -> None:
    """Writes the report of a validation in one HTML file: result, recipe, changed keys, runtimes, plots, all numbers.

    result: the validation. baked: the output. against: how the user named the source. path: the file to write. Raises
    RopeconvError without matplotlib.
    """
    runtime = result.runtime + (f" {result.transformers}" if result.transformers else "")
    speed = ", ".join(f"{name} {value:,.0f}" for name, value in result.speed.items())
    receipt = _receipt(baked)
    facts = {
        "Output": ", ".join(filter(None, [str(baked), described_size(baked)])),
        "Source": ", ".join(filter(None, [against, described_size(Path(against))])),
        "Runtime": runtime,
        "Ran on": f"{result.device}, {result.dtype}",
        "Reference in float32": f"a KL of {result.precision_kl:.1e} away" if result.precision_kl else "the same",
        "Tokens": f"{result.tokens} in each spread run" + (f", {result.length:,} in one" if result.length else ""),
        "Tokens per second": speed or "not measured",
        "Seed": str(result.seed),
        "Schedule": result.digest,
        "Made with": f"ropeconv {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "Written": now(),
        "Command": "ropeconv " + " ".join(sys.argv[1:]),
    }
    page = render(
        "report.html.jinja",
        result=result,
        baked=str(baked),
        against=against,
        facts=facts,
        recipe=facts_of(receipt) if receipt else {},
        changes=changed_keys(baked, receipt) if receipt else (),
        gguf=baked.suffix == ".gguf",
        runtimes=grouped(receipt.runtimes, receipt.source.family) if receipt else (),
        pictures=drawn(pictures(result)),
        evaluations=receipt.evaluations if receipt else (),
    )
    path.write_text(page, "utf-8")


def _receipt(baked: Path) -> Receipt | None:
    """The receipt of an output; None where it has none that can be read."""
    try:
        return read_receipt(baked)
    except (BadSource, OSError):
        return None
