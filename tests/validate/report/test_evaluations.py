"""Evaluations in the report of a validation, which says only whether the method is computed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ropeconv.receipts import write_receipt
from ropeconv.validate.report.page import write_report
from ropeconv.validate.rule.validation import BucketResult, Validation

from ...receipts.test_evaluations import ONE
from ...receipts.test_folders import receipt

BUCKET = BucketResult("1-63", 63, 1e-7, 2e-7, 3e-7, 1e-3, 1.0, 0.5, 1e-5, True)
RESULT = Validation("5.23.0", "cpu", "d" * 64, 64, 0, (BUCKET,), True, "Agrees everywhere.")


def page(folder: Path) -> str:
    write_report(RESULT, folder, "model", folder / "report.html")
    return (folder / "report.html").read_text()


def test_what_was_measured_stands_in_the_report(tmp_path: Path) -> None:
    write_receipt(tmp_path, receipt(evaluations=(ONE, msgspec.structs.replace(ONE, texts=("<b>.txt",)))))
    text = page(tmp_path)
    assert "<td>growth, loss</td><td>8,192</td>" in text
    assert "<td>3.100 ± 0.100</td>" in text
    assert "<td>base</td>\n<td>+0.030</td>" in text
    assert "&lt;b&gt;.txt" in text
    assert "has not measured" not in text


def test_a_report_says_that_nothing_was_measured(tmp_path: Path) -> None:
    assert "<code>ropeconv eval</code>, which has not measured this output." in page(tmp_path)
    write_receipt(tmp_path, receipt())
    assert "which has not measured this output." in page(tmp_path)
