"""Writes the report of a validation as one HTML file, and its plots as a picture."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from ...errors import BadSource
from ...formats.template import render
from ...pictures.style import svg, write
from ...receipts import read_receipt
from ...receipts.evaluation import EvaluationRecord
from ...version import __version__
from ..rule.validation import Validation
from .plots import figure

__all__ = ["write_plot", "write_report"]


def write_plot(result: Validation, path: Path) -> None:
    """Writes the plots of a validation to a .png or .svg file. Raises RopeconvError without matplotlib."""
    write(figure(result), path)


def write_report(result: Validation, baked: Path, against: str, path: Path) -> None:
    """Writes the report of a validation: result, rule, plots, all numbers, environment and command, in one HTML file.

    result: the validation. baked: the output. against: how the user named the source. path: the file to write. Raises
    RopeconvError without matplotlib.
    """
    runtime = result.runtime + (f" {result.transformers}" if result.transformers else "")
    speed = ", ".join(f"{name} {value:,.0f}" for name, value in result.speed.items())
    facts = {
        "Runtime": runtime,
        "Ran on": f"{result.device}, {result.dtype}",
        "Reference in float32": f"a KL of {result.precision_kl:.1e} away" if result.precision_kl else "the same",
        "Tokens": f"{result.tokens} in each spread run" + (f", {result.length:,} in one" if result.length else ""),
        "Tokens per second": speed or "not measured",
        "Seed": str(result.seed),
        "Schedule": result.digest,
        "Made with": f"ropeconv {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "Command": "ropeconv " + " ".join(sys.argv[1:]),
    }
    page = render(
        "report.html.jinja",
        result=result,
        baked=str(baked),
        against=against,
        facts=facts,
        pictures=svg(figure(result)),
        evaluations=_evaluations(baked),
    )
    path.write_text(page, "utf-8")


def _evaluations(baked: Path) -> tuple[EvaluationRecord, ...]:
    """The evaluations in the receipt of an output; none where it has no receipt that can be read."""
    try:
        return read_receipt(baked).evaluations
    except (BadSource, OSError):
        return ()
