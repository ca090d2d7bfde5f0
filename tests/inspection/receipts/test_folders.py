"""A folder of ropeconv as its first source was: what is recorded, and what is presented."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ropeconv.errors import BadSource
from ropeconv.inspection.receipts.folder import (
    first_source,
    folder_record,
    original_record,
    original_source,
    valid_receipt,
)
from ropeconv.inspection.receipts.receipt import (
    BeforeRecord,
    FileRecord,
    FolderRecord,
    OriginalRecord,
    Receipt,
    ScheduleRecord,
    SourceRecord,
    TargetRecord,
    TextRecord,
)
from ropeconv.inspection.receipts.storage import read_receipt, write_receipt
from ropeconv.models.folder import FolderSource

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
OWN = SourceRecord("first", "folder")
SCHEDULE = ScheduleRecord(
    digest="d", inv_freq=(), attention_factor=1.0, context=64, original_context=64
)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def folder(path: Path, **texts: str) -> FolderSource:
    """A folder with a config, one shard, and other texts."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"q": np.arange(1, 9, dtype=np.float32)}, path / "model.safetensors")
    for name, text in texts.items():
        (path / name.replace("__", ".")).write_bytes(text.encode())
    return FolderSource(path)


BEFORE = BeforeRecord("default", "yarn", 1.0, 64, 64, None, None)


def receipt(
    record: FolderRecord | None = None, files: tuple[FileRecord, ...] = (), **fields: Any
) -> Receipt:
    given = {
        "ropeconv": "1",
        "source": SourceRecord("model", "folder"),
        "recipe": {"method": "yarn"},
        "encoding": "native",
        "schedule": SCHEDULE,
        "files": files,
        "original": OriginalRecord(OWN, record),
        "before": BEFORE,
        "target": TargetRecord("safetensors"),
    }
    return Receipt(**{**given, **fields})


def written(path: Path, *names: str) -> tuple[FileRecord, ...]:
    return tuple(
        FileRecord(n, "write", (path / n).stat().st_size, digest((path / n).read_text()))
        for n in names
    )


def output(path: Path, record: FolderRecord, **texts: str) -> FolderSource:
    """A folder with a receipt that says what its first source had."""
    source = folder(path, **texts)
    names = [name.replace("__", ".") for name in texts]
    write_receipt(path, receipt(record, written(path, "config.json", *names)))
    return source


def recorded(source: Any, **changes: Any) -> FolderRecord:
    empty: dict[str, Any] = {
        "written": {},
        "generated": (),
        "renamed": {},
        "skipped": (),
        "multiplied": (),
    }
    return folder_record(source, **{**empty, **changes})


# What is recorded


@pytest.mark.parametrize(
    ("was", "now", "text", "prefix", "suffix"),
    [
        ("ab", "aYb", "", 1, 1),
        ("aXb", "ab", "X", 1, 1),
        ("", "abc", "", 0, 0),
        ("abc", "", "abc", 0, 0),
        ("aaa", "aa", "a", 2, 0),
        ("aa", "aaa", "", 2, 0),
        ("XY", "ZW", "XY", 0, 0),
        ("before MIDDLE after", "before another middle after", "MIDDLE", 7, 6),
    ],
)
def test_a_changed_text_is_recorded_by_the_part_that_differs(
    tmp_path: Path, was: str, now: str, text: str, prefix: int, suffix: int
) -> None:
    source = folder(tmp_path / "a", x__json=was, same__json="same")
    record = recorded(source, written={"x.json": now, "same.json": "same"})
    assert record.texts == (TextRecord("x.json", digest(was), text, prefix, suffix),)
    assert now[:prefix] + text + now[len(now) - suffix :] == was


EARLIER = FolderRecord(
    texts=(TextRecord("x.json", digest("one two"), "one", 0, 4),),
    added=("code.py", "gone.py"),
    renamed={"model.safetensors": "old.safetensors"},
    skipped=("a.bin",),
    multiplied=("k",),
)


def test_a_second_bake_records_the_first_source(tmp_path: Path) -> None:
    """x.json was "one two" in the first source, is "1 two" now, and becomes another text, or what
    it was.
    """
    source = output(tmp_path / "a", EARLIER, x__json="1 two", code__py="old code")
    again = recorded(
        source,
        written={"x.json": "one 2", "code.py": "new code", "more.py": "m"},
        renamed={"newest.safetensors": "model.safetensors"},
        skipped=("b.bin",),
        multiplied=("v",),
    )
    assert again.texts == (TextRecord("x.json", digest("one two"), "two", 4, 0),)
    assert again.added == ("code.py", "more.py")
    assert again.renamed == {"newest.safetensors": "old.safetensors"}
    assert again.skipped == ("a.bin", "b.bin")
    assert again.multiplied == ("k", "v")
    assert recorded(source, written={"x.json": "one two"}).texts == ()
    assert recorded(source).texts == EARLIER.texts
    assert original_record(source, SourceRecord("a", "folder")).source == OWN


# What is presented


def test_texts_names_and_sizes_of_the_first_source(tmp_path: Path) -> None:
    record = FolderRecord(
        texts=(
            TextRecord("x.json", digest("(one)"), "one", 1, 1),
            TextRecord("gone.json", digest("whole\u00e9"), "whole\u00e9"),
        ),
        added=("code.py",),
        renamed={"model.safetensors": "old.safetensors"},
    )
    source = output(tmp_path / "a", record, x__json="(1)", code__py="c")
    first = original_source(source)
    assert [(file.name, file.size) for file in first.files()] == [
        ("config.json", len(json.dumps(CONFIG))),
        ("gone.json", 7),
        ("old.safetensors", (tmp_path / "a" / "model.safetensors").stat().st_size),
        ("x.json", 5),
    ]
    assert (first.text("x.json"), first.text("gone.json"), first.text("code.py")) == (
        "(one)",
        "whole\u00e9",
        None,
    )
    assert first.text("config.json") == json.dumps(CONFIG)
    assert first.generated_texts() == ("x.json", "gone.json")
    assert first.path("old.safetensors") == tmp_path / "a" / "model.safetensors"
    assert (first.kind, first.first) == ("folder", "the local folder 'first'")
    with pytest.raises(BadSource, match="no absent; .*'first'"):
        first.path("absent")
    assert first.identities() == source.identities()


def test_what_is_no_output(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    assert valid_receipt(source) is None
    assert first_source(source) is source
    with pytest.raises(BadSource, match="no ropeconv.json"):
        original_source(source)
    (tmp_path / "graph.onnx").touch()
    with pytest.raises(BadSource, match="compiled graph"):
        read_receipt(tmp_path)
    write_receipt(tmp_path / "a", receipt(original=None))
    assert first_source(FolderSource(tmp_path / "a")).kind == "folder"
    for original in (None, OriginalRecord(OWN)):
        write_receipt(tmp_path / "a", receipt(original=original))
        with pytest.raises(BadSource, match="does not say"):
            original_source(FolderSource(tmp_path / "a"))
    (tmp_path / "a" / "ropeconv.json").write_text("[]")
    assert valid_receipt(FolderSource(tmp_path / "a")) is None
    with pytest.raises(BadSource, match="a: |ropeconv.json"):
        first_source(FolderSource(tmp_path / "a"))
