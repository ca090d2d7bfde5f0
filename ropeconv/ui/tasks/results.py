"""What is known of an output: its receipt, and files of validations and evaluations."""

from __future__ import annotations

from pathlib import Path

from ...errors import BadSource, UsageError
from ...evaluate.report.plots import pictures as evaluation_pictures
from ...evaluate.result import read_result
from ...formats import jsontext
from ...formats.regular import read_text
from ...receipts import parse_receipt, receipt_of
from ...receipts.receipt import Receipt
from ...sources import open_source
from ...validate.report.plots import pictures as validation_pictures
from ...validate.rule.validation import Validation
from ...views.evaluation import show_result
from ...views.receipt import show_receipt
from ...views.validation import show_validation
from ..desk import Desk
from ..forms import ResultsForm
from ..opening import dropped, named
from ..sheet import HtmlSheet


def results(form: ResultsForm, desk: Desk, sheet: HtmlSheet) -> None:
    """Shows a receipt with all that it knows, or the result of an evaluation or a validation."""
    if form.upload:
        _dropped(Path(form.upload), sheet)
    else:
        _receipt(receipt_of(open_source(named(form.source, desk.rules))), sheet)


def _dropped(path: Path, sheet: HtmlSheet) -> None:
    """Shows what a dropped file is: the result of `eval`, that of `validate`, a receipt, or a GGUF file with one."""
    if path.suffix == ".gguf":
        _receipt(receipt_of(dropped(path)), sheet)
        return
    text = read_text(path, path.name)
    data = jsontext.parse(text, path.name)
    if "cells" in data:
        result = read_result(path)
        show_result(result, sheet)
        sheet.pictures(evaluation_pictures(result))
    elif "buckets" in data:
        _validation(data, path.name, sheet)
    elif "recipe" in data:
        _receipt(parse_receipt(text, path.name), sheet)
    else:
        raise UsageError(f"{path.name} is no receipt and no result of `ropeconv eval` or `validate`; drop one of these")


def _receipt(receipt: Receipt, sheet: HtmlSheet) -> None:
    show_receipt(receipt, sheet)
    for name, found in ({"the installed transformers": receipt.validation} | receipt.servers).items():
        if found:
            _validation(found, f"Validated by {name}", sheet)


def _validation(data: dict[str, object], title: str, sheet: HtmlSheet) -> None:
    try:
        result = Validation.from_dict(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadSource(f"{title} is not a validation of ropeconv; run `ropeconv validate` again") from None
    show_validation(result, title, sheet)
    sheet.pictures(validation_pictures(result))
