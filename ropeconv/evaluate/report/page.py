"""Writes the report of an evaluation as one HTML file, and its pictures as a file."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from ...formats.template import render
from ...inspection.evidence import described_size, now
from ...pictures.page import drawn
from ...pictures.style import write
from ...receipts.recipe import described
from ...rope.lengths import format_tokens
from ...version import __version__
from ..measures import REGISTRY
from ..result import Result
from ..tables import tables
from .plots import figure, pictures

__all__ = ["write_plot", "write_report"]


def write_plot(result: Result, path: Path) -> None:
    """Writes the pictures of a result to a .png or .svg file. Raises RopeconvError without matplotlib."""
    write(figure(result), path)


def write_report(result: Result, path: Path) -> None:
    """Writes the report of an evaluation: tables, pictures, how it was measured, all numbers, in one HTML file.

    Raises RopeconvError without matplotlib.
    """
    facts = {
        "Model": ", ".join(filter(None, [result.source, described_size(Path(result.source))])),
        "Ran in": f"{result.runtime} on {result.device}, {result.dtype}",
        "Trained context": f"{result.trained:,} tokens",
        "Lengths": ", ".join(map(format_tokens, result.lengths)),
        "Texts": ", ".join(result.texts),
        "sha256 of their tokens": result.tokens_sha256,
        "Seed": str(result.seed),
        "Duration": f"{result.seconds:,.0f} s",
        "Made with": f"ropeconv {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "Written": now(),
        "Command": "ropeconv " + " ".join(sys.argv[1:]),
    }
    summaries = {name: REGISTRY[name].summary for name in result.measures if name in REGISTRY}
    recipes = {one.name: described(one.recipe) for one in result.rows if one.recipe}
    page = render(
        "evaluation.html.jinja",
        result=result,
        tables=tables(result),
        pictures=drawn(pictures(result)),
        recipes=recipes,
        summaries=summaries,
        facts=facts,
    )
    path.write_text(page, "utf-8")
