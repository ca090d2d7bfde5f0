"""Evaluations in the report of a validation, which says only whether the method is computed."""

from pathlib import Path

import msgspec

from ropeconv.inspection.receipts.receipt import BeforeRecord, RuntimeRecord, ScheduleRecord
from ropeconv.inspection.receipts.storage import write_receipt
from ropeconv.validate.validation import BucketResult, Validation
from ropeconv.views.reports import write_validation_report

from ...inspection.receipts.test_files import ONE
from ...inspection.receipts.test_folders import receipt

BUCKET = BucketResult("1-63", 63, 1e-7, 2e-7, 3e-7, 1e-3, 1.0, 0.5, 1e-5, True)
RESULT = Validation("5.23.0", "cpu", "d" * 64, 64, 0, (BUCKET,), True, "PASS: matches the reference at every position.")


def page(folder: Path, result: Validation = RESULT) -> str:
    write_validation_report(result, folder, "model", folder / "report.html")
    return (folder / "report.html").read_text()


def test_what_was_measured_stands_in_the_report(tmp_path: Path) -> None:
    write_receipt(tmp_path, receipt(evaluations=(ONE, msgspec.structs.replace(ONE, texts=("<b>.txt",)))))
    text = page(tmp_path)
    assert "<td>growth, loss</td><td>8,192</td>" in text
    assert "<td>3.100 ± 0.100</td>" in text
    assert "<td>base</td>\n<td>+0.030</td>" in text
    assert "&lt;b&gt;.txt" in text
    assert "has not measured" not in text


def test_without_evaluations_and_receipt_the_report_says_so_and_leaves_their_parts_out(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "<code>ropeconv eval</code>, which was not run on this output." in text
    assert not [heading for heading in ("<h2>Recipe", "<h2>Runtimes", "<h2>What changed") if heading in text]


def test_recipe_runtimes_size_and_date_stand_in_the_report(tmp_path: Path) -> None:
    before = BeforeRecord("default", "yarn", 1.0, 4096, 4096, None, None)
    runs = (RuntimeRecord("vllm@0.33", "exact", "", "", "vLLM <0.33>", "run"), RuntimeRecord("x@1", "refused"))
    recipe = {"method": "yarn", "parameters": {"factor": 4.0, "truncate": True}}
    schedule = ScheduleRecord(digest="d", inv_freq=(), attention_factor=1.25, context=16384, original_context=4096)
    write_receipt(tmp_path, receipt(recipe=recipe, before=before, schedule=schedule, runtimes=runs))
    text = page(tmp_path)
    for words in (
        "<td>factor 4, truncate on</td>", "<td>4,096 tokens, then 16,384</td>", "<td>1, then 1.25</td>",
        '<th scope="row">exact</th><td>vLLM &lt;0.33&gt;</td>', '<th scope="row">refused</th><td>x 1</td>',
    ):  # fmt: skip
        assert words in text
