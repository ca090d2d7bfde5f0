"""`ropeconv evidence`: any two rows of a stored evaluation, and items for the public record."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.bake.items import METRICS, RecordItem, read_items, write_items
from ropeconv.features.evaluation.measures.measure import REGISTRY
from ropeconv.features.evaluation.result import Result, read_result, record_items, write_result
from ropeconv.rope.recipe import parse_recipe

from ...support.in_process import command
from .results import LENGTHS, TRAINED, loss, made

ROOT = Path(__file__).parents[3]
MODEL = "SmolLM2-135M-Instruct"
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


def changed(files: Path, **changes: Any) -> list[RecordItem]:
    """The items of the result with other values of fields."""
    return [replaced(one, **changes) for one in read_items(files / "items.jsonl.gz")]


def add(items: list[RecordItem], folder: Path, code: int) -> str:
    """Add items to the record of a folder, and return what is said."""
    write_items(items, folder / "more.jsonl.gz")
    words = ("evidence", "add", "more.jsonl.gz", "--to", "record")
    done = command(folder, *words, code=code)
    return done.stdout + done.stderr


@pytest.fixture
def recorded(files: Path, tmp_path: Path) -> Path:
    """A folder with a record of the result."""
    (tmp_path / "record").mkdir()
    shutil.copy(files / "items.jsonl.gz", tmp_path / "record" / "known.jsonl.gz")
    return tmp_path


@pytest.mark.parametrize("turned", [False, True])
def test_models_of_one_file_are_not_mixed(files: Path, tmp_path: Path, turned: bool) -> None:
    own = changed(files)
    other = []
    for one in changed(files, model="other", identity="1" * 64):
        added = 5.0 if one.row == "yarn:4" else 0.0
        other.append(replaced(one, value=one.value + added))
    both = [*other, *own] if turned else [*own, *other]
    write_items(both, tmp_path / "two.jsonl.gz")
    words = ("evidence", "compare", "two.jsonl.gz", "yarn:4", "base")
    assert f"{MODEL}, other" in command(tmp_path, *words, code=2).stderr
    assert "no items of third" in command(tmp_path, *words, "--model", "third", code=2).stderr

    documents = {}
    for name in (MODEL, "other"):
        done = command(tmp_path, *words, "--model", name, "--json", code=0)
        documents[name] = json.loads(done.stdout)
        assert documents[name]["model"] == name
    differences = [one["metrics"]["loss"]["difference"] for one in documents.values()]
    assert differences[1] - differences[0] == pytest.approx(5)
    assert "of other" in command(tmp_path, *words, "--model", "other", code=0).stdout


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"weight": 2}, "weight 1"),
        ({"sliding_window": 512}, "sliding_window 0"),
        ({"on_top": "llama3"}, "on_top ''"),
        ({"trained": TRAINED // 2}, "two trained contexts"),
        ({"identity": "1" * 64}, "several models of the name"),
    ],
)
def test_items_that_differ_from_the_record_are_refused(
    files: Path, recorded: Path, changes: dict[str, Any], field: str
) -> None:
    assert field in add(changed(files, **changes), recorded, code=2)
    assert len(list((recorded / "record").iterdir())) == 1


def test_rounding_is_no_difference(files: Path, recorded: Path) -> None:
    near = [replaced(one, value=one.value + 2e-5) for one in changed(files)]
    assert "already" in add(near, recorded, code=0)
    far = [replaced(one, value=one.value + 2e-2) for one in changed(files)]
    assert "correct one" in add(far, recorded, code=2)


def test_another_precision_is_another_measurement(files: Path, recorded: Path) -> None:
    other = [replaced(one, value=one.value + 0.01) for one in changed(files, dtype="float32")]
    assert f"{len(other)} items" in add(other, recorded, code=0)


def test_a_model_has_one_name_and_one_digest(files: Path, recorded: Path) -> None:
    """A folder that was renamed is still the model of the record."""
    renamed = changed(files, model="my-copy")
    assert "already" in add(renamed, recorded, code=0)
    rerun = [replaced(one, row="ntk:4", method="ntk") for one in renamed if one.row == "yarn:4"]
    assert MODEL in add([*renamed, *rerun], recorded, code=0)
    (added,) = (recorded / "record").glob(f"{MODEL}*")
    assert {(one.model, one.row) for one in read_items(added)} == {(MODEL, "ntk:4")}

    two_names = [*changed(files), *changed(files, model="my-copy")]
    assert "under two names" in add(two_names, recorded, code=2)
    without = changed(files, identity="", runtime="other")
    assert "no digest" in add(without, recorded, code=2)

    first, *others = changed(files, model="my-copy")
    two_digests = [replaced(first, identity="1" * 64), *others]
    assert "several models of the name" in add(two_digests, recorded, code=2)
    for path in (recorded / "record").iterdir():  # a record that does not have the model
        path.unlink()
    assert "several models of the name" in add(two_digests, recorded, code=2)


def test_results_are_checked_as_records_are(files: Path, tmp_path: Path) -> None:
    result = read_result(files / "result.json")
    write_result(replaced(result, trained=0), tmp_path / "wrong.json")
    for words in (("compare", "wrong.json", "yarn:4", "base"), ("add", "wrong.json", "--to", ".")):
        assert "below 1" in command(tmp_path, "evidence", *words, code=1).stderr


def test_the_record_knows_the_metrics_of_every_measure() -> None:
    assert {name: set(METRICS[name]) for name in REGISTRY} == {
        name: set(measure.metrics) for name, measure in REGISTRY.items()
    }


# Outputs of `apply`


def as_output(recipe: str, **changes: Any) -> Result:
    """The result of an output by its own name, beside its source."""
    result = made("base,yarn:4", ["growth"], documents=12)
    base, row = result.rows
    made_by = parse_recipe(recipe).to_dict()
    output = replaced(row, name="my-output", recipe=None, made_by=made_by)
    items = []
    for one in result.items:
        items.append(replaced(one, row="my-output") if one.row == "yarn:4" else one)
    given = {"source": "out/my-output", "model": "Tiny", "rows": [base, output], "items": items}
    return replaced(result, **given | changes)


@pytest.mark.parametrize(
    ("recipe", "method", "factor"),
    [
        ("yarn:4", "yarn", 4.0),
        ("yarn:32k", "yarn", 4.0),
        ("linear:4:context=64k", "linear", 4.0),
        ("theta:1000000", "theta", None),
        ("as-is", "as-is", None),
    ],
)
def test_an_output_has_the_row_of_its_recipe(
    tmp_path: Path, recipe: str, method: str, factor: float | None
) -> None:
    write_result(as_output(recipe), tmp_path / "items.jsonl.gz")
    items = read_items(tmp_path / "items.jsonl.gz")
    assert {one.model for one in items} == {"Tiny"}
    assert {(one.method, one.factor) for one in items} == {("base", None), (method, factor)}
    rows = {one.row for one in items} - {"base"}
    assert [parse_recipe(row) for row in rows] == [parse_recipe(recipe)]


@pytest.mark.parametrize(
    ("recipe", "factor"), [("yarn:256k", 32.0), ("llama3:256k:on_top=true", 2.0), ("yarn:4", 4.0)]
)
def test_a_length_of_a_scaled_model_is_a_multiple_of_what_the_method_starts_from(
    tmp_path: Path, recipe: str, factor: float
) -> None:
    """As Llama 3.1: 8,192 tokens before its scaling, with which it was trained for 131,072."""
    result = as_output(recipe, trained=131072, original_context=8192)
    write_result(result, tmp_path / "items.jsonl.gz")
    items = read_items(tmp_path / "items.jsonl.gz")
    assert {one.factor for one in items} == {None, factor}
    assert {one.trained for one in items} == {131072}


def test_an_output_with_lists_of_numbers_has_its_own_name() -> None:
    made_by = {"method": "inv-freq", "parameters": {"inv_freq": [1.0, 0.5]}}
    result = as_output("yarn:4")
    base, output = result.rows
    rows = [base, replaced(output, made_by=made_by)]
    items = record_items(replaced(result, rows=rows))
    assert {(one.row, one.method) for one in items} == {
        ("base", "base"),
        ("recipe:my-output", "inv-freq"),
    }


def test_an_output_without_its_source_or_a_server_has_no_digest_of_the_model() -> None:
    result = as_output("yarn:4")
    alone = replaced(result, rows=result.rows[1:], items=result.items[-12:])
    assert {one.identity for one in record_items(alone)} == {""}
    assert {one.identity for one in record_items(replaced(result, device="server"))} == {""}
    assert {one.identity for one in record_items(result)} == {result.identity}


def test_items_of_an_output_are_those_of_the_method_on_its_source(
    models: Path, tmp_path: Path
) -> None:
    words = "the cat sat on a mat and the dog ran over red hills to see green boats ".split()
    (tmp_path / "text.txt").write_text(" ".join(words * 300))
    sizes = ("--text", "text.txt", "--lengths", "1T,4T", "--windows", "2", "--targets", "8")
    options = (*sizes, "--dtype", "float32", "--journal", "j.jsonl")
    output = command(tmp_path, "eval", models / "yarn", *options, "-o", "out.json", code=0)
    assert "yarn:4" not in output.stdout
    rows = ("--methods", "base,yarn:4")
    command(tmp_path, "eval", models / "source", *rows, *options, "-o", "src.json", code=0)

    of_output = record_items(read_result(tmp_path / "out.json"))
    of_source = record_items(read_result(tmp_path / "src.json"))
    for one, other in zip(of_output, of_source, strict=True):
        assert replaced(one, value=0.0) == replaced(other, value=0.0)
        assert one.value == pytest.approx(other.value, abs=2e-3)
    (tmp_path / "record").mkdir()
    to = ("--to", "record")
    command(tmp_path, "evidence", "add", "out.json", *to, code=0)
    (file,) = (tmp_path / "record").iterdir()
    assert {(one.model, one.row, one.factor) for one in read_items(file)} == {
        ("source", "base", None),
        ("source", "yarn:4", 4.0),
    }


def test_results_without_items_are_refused(tmp_path: Path) -> None:
    """Those of older versions have means alone."""
    shutil.copy(ROOT / "docs/evidence/smollm2-2T.json", tmp_path / "old.json")
    done = command(tmp_path, "evidence", "add", "old.json", "--to", ".", code=2)
    assert "no single numbers" in done.stderr


def test_a_measure_of_another_package_is_compared_and_not_added(
    files: Path, recorded: Path
) -> None:
    """`eval` writes its items, and readers of the public record do not know what they are."""
    items = changed(files, measure="own-measure", metric="points")
    assert "own-measure" in add(items, recorded, code=2)
    words = ("evidence", "compare", "more.jsonl.gz", "yarn:4", "base", "--measure", "own-measure")
    assert "points" in command(recorded, *words, code=0).stdout
