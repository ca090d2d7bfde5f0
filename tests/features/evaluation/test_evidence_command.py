"""`ropeconv evidence`: any two rows of a stored evaluation, and items for the public record."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from ropeconv.bake.items import read_items, write_items
from ropeconv.features.evaluation.result import write_result

from ...support.in_process import command
from .results import LENGTHS, TRAINED, loss, made

ROOT = Path(__file__).parents[3]
replaced = msgspec.structs.replace


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of twelve texts, as JSON and as a record of its items."""
    folder = tmp_path_factory.mktemp("evidence")
    result = made("base,yarn:4,linear:4", ["growth"], documents=12)
    write_result(result, folder / "result.json")
    write_result(result, folder / "items.jsonl.gz")
    return folder


@pytest.mark.parametrize("name", ["result.json", "items.jsonl.gz"])
def test_two_rows_are_compared_that_are_not_the_first(files: Path, name: str) -> None:
    words = ("evidence", "compare", name, "linear:4", "yarn:4", "--length", "2T", "--json")
    document = json.loads(command(files, *words, code=0).stdout)
    known = loss("linear:4", 2 * TRAINED) - loss("yarn:4", 2 * TRAINED)
    number = document["metrics"]["loss"]
    assert number["difference"] == pytest.approx(known, abs=0.03)
    assert (number["count"], number["decided"], document["length"]) == (12, True, 2 * TRAINED)
    back = json.loads(
        command(files, "evidence", "compare", name, "yarn:4", "linear:4", "--json", code=0).stdout
    )
    assert back["length"] == LENGTHS[-1], "the longest length unless one is named"
    assert back["metrics"]["loss"]["difference"] < 0


def test_a_small_difference_is_not_significant(files: Path, tmp_path: Path) -> None:
    """The same row under another name, with one text that differs."""
    items = read_items(files / "items.jsonl.gz")
    copies = [
        replaced(one, row="ntk:4", method="ntk", value=one.value + 0.1 * (one.text == "0.txt"))
        for one in items
        if one.row == "yarn:4"
    ]
    write_items([*items, *copies], tmp_path / "more.jsonl.gz")
    words = ("evidence", "compare", "more.jsonl.gz", "ntk:4", "yarn:4", "--json")
    number = json.loads(command(tmp_path, *words, code=0).stdout)["metrics"]["loss"]
    assert (number["difference"], number["decided"]) == (pytest.approx(0.1 / 12), False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("result.json", "yarn:4", "mixed:4"), "no row mixed:4 with growth at 65,536 tokens"),
        (
            ("result.json", "yarn:4", "base", "--measure", "passkey"),
            "has no passkey; it has growth",
        ),
        (("result.json", "yarn:4", "base", "--length", "3T"), "choose one of 1/4T, 1T, 2T"),
        (("none.json", "yarn:4", "base"), "cannot be read"),
    ],
)
def test_what_is_not_there_is_refused(files: Path, words: tuple[str, ...], message: str) -> None:
    assert message in command(files, "evidence", "compare", *words, code=2).stderr


def test_items_are_added_once(files: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    words = ("evidence", "add", files / "result.json", "--to", record)
    assert "is not a folder" in command(tmp_path, *words, code=2).stderr
    record.mkdir()
    document = json.loads(command(tmp_path, *words, "--json", code=0).stdout)
    assert (document["rows"], document["texts"]) == (3, 12)
    (written,) = record.iterdir()
    assert written.name == "SmolLM2-135M-Instruct-4x.jsonl.gz"
    assert read_items(written) == read_items(files / "items.jsonl.gz")
    assert "already" in command(tmp_path, *words, code=0).stdout
    assert list(record.iterdir()) == [written]

    # a further row comes into a file of its own, without what is there
    items = read_items(written)
    other = [replaced(one, row="ntk:4", method="ntk") for one in items if one.row == "yarn:4"]
    write_items([*items, *other], tmp_path / "more.jsonl.gz")
    command(tmp_path, "evidence", "add", "more.jsonl.gz", "--to", record, code=0)
    added = read_items(record / "SmolLM2-135M-Instruct-4x-2.jsonl.gz")
    assert {one.row for one in added} == {"ntk:4"}

    # and a number that differs from that of the record is refused
    write_items([replaced(items[0], value=9.0)], tmp_path / "wrong.jsonl.gz")
    done = command(tmp_path, "evidence", "add", "wrong.jsonl.gz", "--to", record, code=2)
    assert "and the file has 9; correct one of them" in done.stderr


def test_results_without_items_are_refused(tmp_path: Path) -> None:
    """Those of older versions have means alone."""
    shutil.copy(ROOT / "docs/evidence/smollm2-2T.json", tmp_path / "old.json")
    done = command(tmp_path, "evidence", "add", "old.json", "--to", ".", code=2)
    assert "no single numbers" in done.stderr
