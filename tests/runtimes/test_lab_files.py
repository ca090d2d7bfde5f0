"""The files of the lab: each release has what is different in it, and is read whole again."""

import json
from pathlib import Path

import msgspec
import pytest

from ropeconv.runtimes.evidence import records
from ropeconv.runtimes.lab_file import (
    LabFile,
    ModelRecord,
    ReadKeys,
    Record,
    full_keys,
    full_records,
    lab_file,
)
from ropeconv.runtimes.runtime import version_key
from ropeconv.runtimes.stored import SHIPPED
from scripts.laboratory import lab_files
from scripts.laboratory import records as module

EXACT = ModelRecord("d1", ("yarn",), "exact")
MIXED = ModelRecord("d1", ("yarn",), "exact", {"differs": {"why": ("linear / native",)}})
NAMES = [f"model-{number}" for number in range(9)]
SAME = dict.fromkeys(NAMES, EXACT)


def made(*records: Record, keys: dict[str, ReadKeys] | None = None) -> LabFile:
    file = LabFile("made", "how")
    for record in records:
        file = lab_files.replaced(file, record=record)
    return lab_files.replaced(file, keys=keys)


def again(file: LabFile) -> LabFile:
    return msgspec.json.decode(lab_files.text(file), type=LabFile)


def record(version: str, models: dict[str, ModelRecord], options: str = "") -> Record:
    return Record("made", version, f"day of {version}", "how", models, options)


RECORDS = [
    record("1.2.0", SAME),
    record("1.9.0", SAME | {"model-3": MIXED}),
    record("1.10.0", {name: SAME[name] for name in NAMES[:4]}),
    record("2.0.0", {"other": MIXED}),
    record("2.0.0", {"other": EXACT}, "--option on"),
    record("2.1.0", SAME | {"model-2": msgspec.structs.replace(EXACT, date="another day")}),
]


def test_a_file_has_its_records_whole_from_the_oldest_version_to_the_newest() -> None:
    file = made(*reversed(RECORDS))
    assert list(full_records(again(file))) == RECORDS
    assert made(*RECORDS) == file, "the order in which they are executed leaves no trace"


def test_a_release_that_differs_in_nothing_is_one_line() -> None:
    file = made(record("1.0", SAME))
    before = lab_files.text(file).splitlines()
    after = lab_files.text(made(record("1.0", SAME), record("1.1", SAME))).splitlines()
    added = [line for line in after if line.rstrip(",") not in [old.rstrip(",") for old in before]]
    assert added == ['{"version":"1.1","date":"day of 1.1","like":"1.0"}']


def test_a_release_has_a_line_for_each_model_that_differs() -> None:
    (_, entry) = made(record("1.0", SAME), RECORDS[1]).records
    assert (entry.like, entry.without, set(entry.models)) == ("1.0", (), {"model-3"})
    (_, fewer) = made(record("1.0", SAME), RECORDS[2]).records
    assert (fewer.like, set(fewer.without), fewer.models) == ("1.0", set(NAMES[4:]), {})
    (_, unlike) = made(record("1.0", SAME), RECORDS[3]).records
    assert (unlike.like, unlike.without, unlike.models) == ("", (), {"other": MIXED})


def test_a_record_takes_the_place_of_that_of_its_version() -> None:
    """Later releases keep their results, though they were written as like the one that changed."""
    changed = record("1.2.0", {"model-0": MIXED})
    file = lab_files.replaced(made(*RECORDS), record=changed)
    assert list(full_records(again(file))) == [changed, *RECORDS[1:]]


def test_an_entry_like_a_later_one_is_no_file() -> None:
    raw = json.loads(lab_files.text(made(record("1.0", SAME), record("1.1", SAME))))
    raw["records"].reverse()
    with pytest.raises(KeyError):
        list(full_records(msgspec.convert(raw, LabFile)))


def test_keys_are_read_again() -> None:
    keys = {
        "1.2": ReadKeys(("a", "b"), {"k": ("llama",), "l": ("llama", "phi3")}),
        "1.9": ReadKeys(("a", "b"), {"k": ("llama",), "l": ("llama", "phi3")}),
        "1.10": ReadKeys(("a",), {"l": ("llama",), "m": ("phi3",)}),
        "2.0": ReadKeys((), {"k": ("llama",)}),
    }
    file = made(keys=keys)
    assert full_keys(again(file)) == keys
    assert [entry.config for entry in file.keys][1:3] == [
        {},
        {"k": (), "l": ("llama",), "m": ("phi3",)},
    ]
    assert [entry.rope for entry in file.keys] == [("a", "b"), None, ("a",), ()]


@pytest.mark.parametrize(
    "path", sorted((SHIPPED / "lab").glob("*.json")), ids=lambda path: path.stem
)
def test_a_file_of_the_package_is_as_the_lab_writes_it(path: Path) -> None:
    file = lab_file(path.stem)
    assert file is not None
    written = made_again(file)
    assert lab_files.text(written) == path.read_text("utf-8")


def made_again(file: LabFile) -> LabFile:
    entries = lab_files.record_entries(full_records(file))
    keys = lab_files.keys_entries(full_keys(file))
    return LabFile(file.runtime, file.how, tuple(entries), tuple(keys))


def test_records_come_by_runtime_and_version() -> None:
    """Version 5.12 comes after 5.9, which is not so by name."""
    by_runtime: dict[str, list[tuple[int, ...]]] = {}
    for known in records():
        by_runtime.setdefault(known.runtime, []).append(version_key(known.version))
    assert list(by_runtime) == sorted(by_runtime)
    assert by_runtime["transformers"].index((5, 9, 0)) < by_runtime["transformers"].index(
        (5, 12, 1)
    )
    for versions in by_runtime.values():
        assert versions == sorted(versions)


def test_what_the_lab_saves_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_files, "FOLDER", tmp_path)
    assert module.load("made", "1.2.0") is None
    for item in RECORDS:
        module.save(item)
    assert module.load("made", "1.10.0") == RECORDS[2]
    assert module.load("made", "2.0.0") == RECORDS[3]
    assert module.load("made", "2.0.0", "--option on") == RECORDS[4]
    assert module.load("made", "3.0") is None
