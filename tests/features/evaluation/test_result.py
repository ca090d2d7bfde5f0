"""A result: in a file, as tables, in the receipt of the output that was evaluated, and as the order
of advice.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv import UsageError, inspect_source, open_source
from ropeconv.bake.advice import Advice, advise
from ropeconv.features.evaluation.ranking import Ranking, rank
from ropeconv.features.evaluation.report import write_evaluation_report
from ropeconv.features.evaluation.result import (
    Result,
    main_metric,
    read_result,
    record,
    tables,
    write_result,
)
from ropeconv.inspection.receipts.storage import read_receipt, write_receipt
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import Row

from ...conftest import CONFIGS
from ...inspection.receipts.test_folders import receipt
from ...support.in_process import command
from .results import LENGTHS, ROWS, made

replaced = msgspec.structs.replace


def test_what_was_written_is_read(tmp_path: Path) -> None:
    result = made()
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result
    data = json.loads((tmp_path / "result.json").read_text())
    assert (data["schema"], data["cells"][0]["row"]) == (2, "base")


@pytest.mark.parametrize(
    ("change", "cell", "error"),
    [
        ({"schema": 99}, {}, "later ropeconv"),
        ({"trained": "many"}, {}, "trained"),
        ({}, {"value": float("nan")}, "a wrong cell of base"),
        ({}, {"row": "another"}, "a wrong cell of another"),
    ],
)
def test_a_changed_result_is_refused(
    tmp_path: Path, change: dict[str, Any], cell: dict[str, Any], error: str
) -> None:
    path = tmp_path / "result.json"
    write_result(made(measures=["growth"]), path)
    data = json.loads(path.read_text())
    path.write_text(
        json.dumps(data | change | {"cells": [data["cells"][0] | cell, *data["cells"][1:]]})
    )
    with pytest.raises(RopeconvError, match=error):
        read_result(path)


@pytest.mark.parametrize(
    ("text", "message"), [(None, "ropeconv eval -o"), ("{", r"x\.json"), ("[]", r"x\.json")]
)
def test_another_file_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    with pytest.raises(RopeconvError, match=message):
        read_result(tmp_path / "x.json")


def test_the_table_of_growth_has_lengths_price_and_holds_to() -> None:
    result = made(measures=["growth"])
    (table,) = tables(result)
    assert table.columns == ("1/4T", "1T", "2T", "4T", "8T", "price", "holds to")
    assert [name for name, _ in table.lines] == list(ROWS)
    base, yarn = (dict(zip(table.columns, entries, strict=True)) for _, entries in table.lines[:2])
    cell = result.cell("base", "growth", "loss", 8192)
    other = result.cell("yarn:4", "growth", "loss", 16384)
    assert (base["1T"].text, base["1T"].decided) == (f"{cell.value:.3f}", None)
    assert (yarn["2T"].text, yarn["2T"].decided) == (f"{other.difference:+.3f}", True)
    assert yarn["2T"].error == f"±{other.difference_error:.3f}"
    assert [row["holds to"].text for row in (base, yarn)] == ["1T", "4T"]
    assert (base["price"].text, yarn["price"]) == ("-", yarn["1T"])


def test_few_columns_are_kept_with_the_last_and_that_of_the_trained_context() -> None:
    result = made(measures=["position"])
    whole = tables(result)[0]
    few = tables(result, 6)[0]
    assert (len(whole.columns), len(few.columns), few.columns[-1]) == (32, 6, "65,536")
    assert "8,192" in few.columns
    for name, entries in few.lines:
        line = dict(zip(whole.columns, dict(whole.lines)[name], strict=True))
        assert entries == tuple(line[column] for column in few.columns)


def test_tables_are_in_the_order_that_was_asked_for_with_the_first_metric_of_a_measure() -> None:
    result = made("base", ["position", "passkey", "growth"])
    variant = replaced(result, measures=["growth", "passkey", "position"])
    assert [table.title.partition(":")[0] for table in tables(variant)] == [
        "growth",
        "passkey",
        "position",
    ]
    assert (main_metric(result, "passkey"), main_metric(result, "growth")) == ("accuracy", "loss")


def test_the_receipt_has_the_cells_over_all_depths(tmp_path: Path) -> None:
    write_receipt(tmp_path, receipt())
    result = replaced(made("base,yarn:4"), texts=["/home/someone/private/book.txt"])
    assert record(result, [Row("base"), Row("yarn:4", path=tmp_path)]) == [tmp_path]
    (evaluation,) = read_receipt(tmp_path).evaluations
    expected = [
        (name, metric, n)
        for name, metric in (("growth", "loss"), ("passkey", "accuracy"))
        for n in LENGTHS
    ]
    assert [(item.measure, item.metric, item.column) for item in evaluation.measured] == expected
    entry = evaluation.measured[2]
    cell = result.cell("yarn:4", "growth", "loss", 16384)
    row = result.rows[1]
    for name in ("value", "error", "difference", "difference_error"):
        assert getattr(entry, name) == getattr(cell, name)
    assert evaluation.measured[-1].low is not None
    assert (evaluation.against, evaluation.price, evaluation.holds_to) == (
        "base",
        row.price,
        row.holds_to,
    )
    assert evaluation.texts == ("book.txt",), (
        "receipts are published, and folders of this machine are not"
    )


# The report of an evaluation, and its pictures


@pytest.fixture(scope="module")
def result() -> Result:
    return made("base,yarn:4,linear:4")


def page(result: Result, folder: Path) -> str:
    write_evaluation_report(result, folder / "r.html")
    return (folder / "r.html").read_text()


def test_the_page_has_tables_pictures_and_how_it_was_measured(
    result: Result, tmp_path: Path
) -> None:
    text = page(result, tmp_path)
    cell = result.cell("yarn:4", "growth", "loss", 16384)
    assert (
        f'<td class="decided">{cell.difference:+.3f} <span'
        f' class="error">±{cell.difference_error:.3f}</span>' in text
    )
    assert text.count("<tr><td>yarn:4</td>") == 3 + len(
        [c for c in result.cells if c.row == "yarn:4"]
    )
    assert text.count("<figcaption ") == text.count("<figure>") == text.count("<svg") == 6
    assert '<th scope="row">linear:4</th><td>linear: factor 4</td>' in text
    for phrase in ("loss of the same tokens under a growing context", result.tokens_sha256):
        assert phrase in text
    assert all(html.escape(note[1:]) in text for note in result.notes)
    assert re.search(r"Written</th><td>20\d\d-", text)
    assert "{{" not in text
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", text), (
        "a page that loads nothing from elsewhere"
    )


def test_names_are_escaped_and_a_page_may_have_no_numbers(tmp_path: Path) -> None:
    result = made("base", ["growth"])
    evil = msgspec.structs.replace(
        result,
        source="<script>alert(1)</script>",
        notes=["<b>"],
        cells=[],
        rows=[*result.rows, msgspec.structs.replace(result.rows[0], name="<u>", refused="<img>")],
    )
    text = page(evil, tmp_path)
    assert "&lt;script&gt;" in text
    assert not any(tag in text for tag in ("<script", "<u>", "<img", "<p><b>", "<svg"))


# Advice sorted by a measurement

LLAMA_3 = str(CONFIGS / "meta-llama--Meta-Llama-3-8B.json")
"""Trained for 8,192 tokens, as the made-up results are."""
NAMES = {"linear": "linear:4", "yarn": "yarn:32k", "ntk": "ntk:4", "mixed": "mixed:4"}


@pytest.fixture(scope="module")
def advice() -> list[Advice]:
    return advise(open_source(LLAMA_3), 32768)[0]


@pytest.fixture(scope="module")
def growth() -> Result:
    """yarn is measured under the length that it reaches, which is the same method."""
    text = msgspec.json.encode(made("base,linear:4,yarn:4,ntk:4,mixed:4", ["growth"]))
    data = msgspec.json.decode(text.replace(b'"yarn:4"', b'"yarn:32k"'))
    data["rows"][2]["recipe"]["parameters"]["factor"] = "32k"
    return msgspec.convert(data, Result)


def ranking(advice: list[Advice], result: Result) -> Ranking:
    return rank(advice, result, inspect_source(open_source(LLAMA_3)), 32768)


def test_measured_methods_come_first_by_their_loss(advice: list[Advice], growth: Result) -> None:
    names, defaults = (
        [entry.method.name for entry in rows] for rows in (ranking(advice, growth).methods, advice)
    )
    losses = {name: growth.cell(row, "growth", "loss", 32768).value for name, row in NAMES.items()}
    assert names[:4] == sorted(losses, key=lambda name: losses[name]) != defaults[:4]
    assert names[3] == "ntk", "it breaks before 32k tokens"
    assert names[4:] == [name for name in defaults if name not in losses]


def test_results_that_say_nothing_about_this_model_are_refused(
    advice: list[Advice], growth: Result
) -> None:
    for change, message in (
        ({"trained": 4096}, "trained for 4,096 tokens"),
        ({"cells": []}, "no growth"),
    ):
        with pytest.raises(UsageError, match=message):
            ranking(advice, replaced(growth, **change))


def test_advise_sorts_by_a_file(tmp_path: Path, growth: Result) -> None:
    write_result(growth, tmp_path / "result.json")

    def printed(*words: str) -> str:
        return command(tmp_path, "advise", LLAMA_3, "--context", "32k", *words, code=0).stdout

    measured = ("--measured", "result.json")
    text = printed(*measured)
    assert "Sorted by: the loss at 32,768" in printed(*measured, "--explain")
    assert "is a measurement" not in text
    assert text.splitlines()[1].split()[:5] == ["method", "loss", "price", "holds", "to"]
    rows = [
        item["measured"] and item["measured"]["row"]
        for item in json.loads(printed(*measured, "--json"))["advice"]
    ]
    assert None not in rows[:4]
    assert set(rows[4:]) == {None}
    assert "measured" not in json.loads(printed("--json"))["advice"][0]
