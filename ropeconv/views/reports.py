"""Writes the report of an evaluation as one HTML file, and its pictures as a file."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from ..errors import BadSource
from ..evaluate.measures.measure import REGISTRY
from ..evaluate.result import Result, tables
from ..formats.package_data import render
from ..inspection.kv_cache import described_size, now
from ..inspection.receipts.reader import described, read_receipt
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.writer import changed_keys, facts_of
from ..rope.lengths import format_tokens
from ..rope.methods.method import Method
from ..runtimes.groups import grouped
from ..validate.validation import Validation
from ..version import __version__
from .evaluation_plots import evaluation_pictures
from .plot_style import drawn
from .validation_plots import validation_pictures

OTHER_TITLES = {"longrope": "LongRoPE factor lists", "inv-freq": "custom frequencies", "as-is": "the unchanged RoPE"}


def method_title(method: type[Method]) -> str:
    """Return the name of a method for a sentence, such as "YaRN" or "position interpolation"."""
    return OTHER_TITLES.get(method.name) or re.split(r" as |[:(,]", method.summary)[0].strip()


def _origin() -> dict[str, str]:
    """The facts on how a report was made."""
    return {
        "Made with": f"ropeconv {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "Written": now(),
        "Command": "ropeconv " + " ".join(sys.argv[1:]),
    }


def write_evaluation_report(result: Result, path: Path) -> None:
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
    } | _origin()
    summaries = {name: REGISTRY[name].summary for name in result.measures if name in REGISTRY}
    recipes = {row.name: described(row.recipe) for row in result.rows if row.recipe}
    page = render(
        "evaluation.html.jinja",
        result=result,
        tables=tables(result),
        pictures=drawn(evaluation_pictures(result)),
        recipes=recipes,
        summaries=summaries,
        facts=facts,
    )
    path.write_text(page, "utf-8")


def write_validation_report(result: Validation, baked: Path, against: str, path: Path) -> None:
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
        "Tokens": f"{result.tokens} in each spread run" + (f", {result.length:,} in one" if result.length else ""),
        "Tokens per second": speed or "not measured",
        "Seed": str(result.seed),
        "Schedule": result.digest,
    } | _origin()
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
        pictures=drawn(validation_pictures(result)),
        evaluations=receipt.evaluations if receipt else (),
    )
    path.write_text(page, "utf-8")


def _receipt(baked: Path) -> Receipt | None:
    """The receipt of an output; None where it has none that can be read."""
    try:
        return read_receipt(baked)
    except (BadSource, OSError):
        return None
