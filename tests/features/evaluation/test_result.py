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
from ropeconv.bake.items import Item, compare_rows, write_items
from ropeconv.features.evaluation.cases import Observation
from ropeconv.features.evaluation.ranking import Ranking, rank
from ropeconv.features.evaluation.report import write_evaluation_report
from ropeconv.features.evaluation.result import (
    Result,
    evaluation_records,
    main_metric,
    read_result,
    record,
    record_items,
    tables,
    write_result,
)
from ropeconv.inspection.receipts.storage import read_receipt, write_receipt
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import Row

from ...conftest import CONFIGS
from ...inspection.receipts.test_folders import receipt
from ...support.in_process import command
from .results import LENGTHS, ROWS, TRAINED, made

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


def test_a_number_without_one_in_the_first_row_is_in_parentheses() -> None:
    def left_out(row: str, point: Observation) -> bool:
        return row == "base" and point.column > 16384

    result = made("base,yarn:4", ["growth"], left_out=left_out)
    (table,) = tables(result)
    base, yarn = (dict(zip(table.columns, entries, strict=True)) for _, entries in table.lines)
    cell = result.cell("yarn:4", "growth", "loss", 32768)
    assert (base["4T"].text, yarn["4T"].text) == ("-", f"({cell.value:.3f})")
    assert yarn["2T"].text.startswith(("+", "-"))
    assert "in parentheses where base has no number" in table.title
    assert "parentheses" not in tables(made("base,yarn:4", ["growth"]))[0].title
    # base was measured to 2T and fails there; yarn:4 was measured beyond 4T and fails
    assert [row["holds to"].text for row in (base, yarn)] == ["1T", "4T"]
    short = made("base", ["growth"], left_out=lambda row, point: point.column > TRAINED)
    ((_, entries),) = tables(short)[0].lines
    assert entries[-1].text == "1T+", "nothing longer was measured"


def test_a_measure_is_compared_with_the_first_row_that_has_it() -> None:
    def left_out(row: str, point: Observation) -> bool:
        return row == "base" and point.measure == "growth"

    result = made("base,yarn:4,ntk:4", ["growth", "passkey"], left_out=left_out)
    growth, *_ = tables(result)
    assert "then minus yarn:4;" in growth.title
    ntk = result.cell("ntk:4", "growth", "loss", TRAINED)
    yarn = result.cell("yarn:4", "growth", "loss", TRAINED)
    assert ntk.difference == pytest.approx(ntk.value - yarn.value)
    assert yarn.difference is None
    yarn_passkey = result.cell("yarn:4", "passkey", "accuracy", TRAINED)
    base_passkey = result.cell("base", "passkey", "accuracy", TRAINED)
    assert yarn_passkey.difference == pytest.approx(yarn_passkey.value - base_passkey.value)
    records = evaluation_records(result, "ntk:4")
    assert [(one.against, {cell.measure for cell in one.measured}) for one in records] == [
        ("yarn:4", {"growth"}),
        ("base", {"passkey"}),
    ]
    assert [one.price for one in records] == [result.rows[2].price, None]
    assert [one.against for one in evaluation_records(result, "yarn:4")] == ["", "base"]


def test_the_title_of_keys_counts_questions_and_windows() -> None:
    result = made("base", ["passkey"])
    (cell, *_) = (cell for cell in result.cells if cell.depth is None)
    keys = replaced(cell, measure="keys", windows=12, clusters=300, questions=300, documents=4)
    (table,) = tables(replaced(result, cells=[keys], measures=["keys"]))
    assert table.title.endswith("n = 300 questions in 12 windows of 4 texts")


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


def asked(found: dict[str, int], documents: int = 12) -> Result:
    """A result with 24 passkeys for each row at each length, of which a row finds so many at 4T."""
    result = made(",".join(["base", *NAMES_AT_FOUR]), ["growth"], documents)
    items = list(result.items)
    for row in ("base", *NAMES_AT_FOUR):
        for length in LENGTHS:
            right = 24 if length <= 8192 else found.get(row, 0)
            for number in range(24):
                item = Item(
                    row=row,
                    measure="passkey",
                    metric="exact",
                    length=length,
                    text=f"{number % documents}.txt",
                    window=number // documents,
                    value=float(number < right),
                )
                items.append(item)
    return replaced(result, items=items)


NAMES_AT_FOUR = ("linear:4", "yarn:4", "ntk:4", "mixed:4")


def test_training_follows_from_the_measurement_where_it_has_what_the_bar_needs(
    advice: list[Advice],
) -> None:
    """Its yarn loses 0.04 nats and finds all 24 facts, and mixed loses as little and finds none."""
    ranked = ranking(advice, asked({"yarn:4": 24}))
    own = {row.method.name: row for row in ranked.methods}
    others = {row.method.name: row for row in advice}
    assert others["yarn"].without_training == "not decided"
    assert (own["yarn"].without_training, own["yarn"].fine_tuning.level) == ("yes", "none")
    assert (own["mixed"].without_training, own["mixed"].fine_tuning.level) == ("no", "needed")
    assert "24" in own["mixed"].fine_tuning.reason
    assert own["theta-for"] == others["theta-for"], "it was not measured"
    judged = {name for name, row in own.items() if ranked.judges(row)}
    assert judged >= {"yarn", "mixed"}
    assert "theta-for" not in judged


def test_a_measurement_without_answers_says_from_where_training_is(
    advice: list[Advice], growth: Result, tmp_path: Path
) -> None:
    ranked = ranking(advice, growth)
    judged = {row.method.name for row in ranked.methods if ranked.judges(row)}
    assert judged == {"linear", "ntk"}, "they lose more than the bar allows, whatever they find"
    assert any("passkey" in sentence for sentence in ranked.sentences())
    write_result(growth, tmp_path / "result.json")
    words = ("advise", LLAMA_3, "--context", "32k", "--measured", "result.json")
    lines = command(tmp_path, *words, code=0).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("--mixed")]
    assert "no (SmolLM2-135M at 4x)" in line
    (line,) = [line for line in lines if line.startswith("--linear")]
    assert "no (" not in line, "from the result itself"


def test_base_and_what_is_not_decided_are_shown(advice: list[Advice]) -> None:
    """yarn and by-parts of made-up numbers are 0.016 apart, with a noise of 0.02 in 12 windows."""
    result = made("base,by-parts:4,yarn:4,linear:4", ["growth"])
    ranked = ranking(advice, result)
    base = ranked.base_cells()
    assert base is not None
    assert base[0] == f"{result.cell('base', 'growth', 'loss', 32768).value:.3f}"
    differs = {row.method.name: ranked.to_dict(row) for row in ranked.methods[:3]}
    for name, row in (("by-parts", "by-parts:4"), ("yarn", "yarn:4"), ("linear", "linear:4")):
        proof = compare_rows(result.items, row, "base", 32768, "growth", "loss")
        assert differs[name]["minus_base"] == proof.difference
        assert differs[name]["differs_from_base"] == proof.decided
    first, *others = (row.method.name for row in ranked.methods[:3])
    assert differs[first]["differs_from_first"] is None
    assert differs["linear"]["differs_from_first"] is True
    close = {"yarn", "by-parts"} - {first}
    assert close < set(others)
    (name,) = close
    assert differs[name]["differs_from_first"] is False
    flags = next(row.flags for row in ranked.methods if row.method.name == name)
    assert any(flags in sentence for sentence in ranked.sentences())


def test_a_measurement_of_no_method_at_the_length_is_refused(tmp_path: Path) -> None:
    """Its rows are for 4 times the length, and 2 times is wanted."""
    write_result(made("base,yarn:4", ["growth"]), tmp_path / "result.json")
    words = ("advise", LLAMA_3, "--context", "16k", "--measured", "result.json")
    refused = command(tmp_path, *words, code=2).stderr
    assert "16,384" in refused
    assert "yarn:2" in refused


@pytest.mark.parametrize("name", ["items.jsonl.gz", "items.jsonl"])
def test_a_record_is_no_measurement_for_advise(name: str, tmp_path: Path) -> None:
    write_items(record_items(made("base,yarn:4", ["growth"])), tmp_path / name)
    words = ("advise", LLAMA_3, "--context", "32k", "--measured", name)
    assert "NAME.json`" in command(tmp_path, *words, code=2).stderr


def test_the_unchanged_model_is_the_row_of_as_is(tmp_path: Path) -> None:
    """No layer of Mistral 7B v0.1 sees beyond 4,096 tokens, so --as-is is what base measured."""
    mistral = str(CONFIGS / "mistralai--Mistral-7B-v0.1.json")
    source = open_source(mistral)
    lengths = {8192: 32768, 16384: 65536}
    result = made("base,yarn:4", ["growth"])
    cells = [replaced(cell, column=lengths.get(cell.column, cell.column)) for cell in result.cells]
    result = replaced(result, trained=32768, cells=cells)
    ranked = rank(advise(source, 65536)[0], result, inspect_source(source), 65536)
    assert ranked.methods[0].method.name == "as-is"
    assert ranked.measured["as-is"][0].name == "base"
    assert ranked.base_cells() is None
