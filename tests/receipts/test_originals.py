"""What an output shares with its first source, and what a receipt of the current schema keeps when it is read."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ropeconv.receipts import parse_receipt
from ropeconv.receipts.folder_original import original_source
from ropeconv.receipts.original import FolderRecord, OriginalRecord, SourceRecord
from ropeconv.receipts.receipt import FoldRecord, LogNRecord, RuntimeRecord, ScheduleRecord
from ropeconv.receipts.write import embedded

from .test_folders import output, receipt

RENAMED = FolderRecord(renamed={"model.safetensors": "old.safetensors"})


def test_a_first_source_is_read_from_the_files_of_its_output(tmp_path: Path) -> None:
    """Its name, and what tells that one of these files has changed, are those of the output."""
    source = output(tmp_path / "a", FolderRecord())
    first = original_source(source)
    assert first.files()
    assert first.seen() == source.seen()
    assert tmp_path / "a" / "config.json" in first.seen()
    assert "model.safetensors" not in {path.name for path in first.seen(("model.safetensors",))}
    assert (first.name, first.reference, first.commit) == ("a", str(tmp_path / "a"), None)


@pytest.mark.parametrize(("record", "kind"), [(FolderRecord(), "hub"), (RENAMED, "folder")])
def test_files_of_the_hub_that_had_other_names_are_those_of_a_folder(
    tmp_path: Path, record: FolderRecord, kind: str
) -> None:
    """The Hub copies files by the names that it has."""
    source = output(tmp_path / "a", record)
    source.kind, source.commit = "hub", "0123456"
    first = original_source(source)
    assert (first.kind, first.commit) == (kind, "0123456")


def test_a_family_that_was_given_then_is_that_of_the_receipt_unless_it_is_given_again(tmp_path: Path) -> None:
    source = output(tmp_path / "a", FolderRecord())
    assert original_source(source).treat_as == ""
    data = json.loads((tmp_path / "a" / "ropeconv.json").read_text())
    data["source"]["family"] = "llama"
    (tmp_path / "a" / "ropeconv.json").write_text(json.dumps(data))
    assert original_source(source).treat_as == "llama"
    source.treat_as = "mistral"
    assert original_source(source).treat_as == "mistral"


def test_a_receipt_of_the_current_schema_is_read_as_it_is() -> None:
    """Nothing of it is renamed, as of schema 1, where `steps` was the approximation and results had other keys."""
    whole = receipt(
        FolderRecord(),
        fold=FoldRecord("q", ("q_proj",), 1e-4),
        log_n_approximation=LogNRecord(0.12, 4096, 1.0, 0.08),
        runtimes=(RuntimeRecord("vllm@0.33.0", "exact", "because"),),
        schedule=ScheduleRecord("d", (1.0, 0.1), query_scaling={"beta": 0.1}),
        validation={"third_kl": 1.0},
        servers={"vLLM": {"third_kl": 2.0}},
    )
    assert parse_receipt(embedded(whole), "ropeconv.json") == whole


def test_the_source_of_a_receipt_for_a_sentence() -> None:
    """That on the Hub by its commit, one with a reference alone by that, and others by their name."""
    hub = SourceRecord("m", "hub", "owner/m", "0123456")
    assert hub.described == "owner/m at commit 0123456"
    assert msgspec.structs.replace(hub, commit=None).described == "owner/m"
    assert SourceRecord("m", "folder").described == "the local folder 'm'"
    assert SourceRecord("m", "gguf").described == "the local file 'm'"
    assert SourceRecord("m", "gguf", commit="0123456").described == "the local file 'm'"
    of_a_folder = receipt(FolderRecord(), original=OriginalRecord(hub))
    assert of_a_folder.first is hub
    assert receipt(FolderRecord(), original=None).first.name == "model"


@pytest.mark.parametrize(
    ("kind", "reference", "commit", "repository"),
    [
        ("hub", "owner/m@main", "0123456", "owner/m"), ("gguf", "owner/m/file.gguf", "0123456", "owner/m"),
        ("hub", "owner/m", None, ""), ("folder", "owner/m", "0123456", ""), ("gguf", None, "0123456", ""),
    ],
)  # fmt: skip
def test_the_repository_of_a_source(kind: str, reference: str | None, commit: str | None, repository: str) -> None:
    assert SourceRecord("m", kind, reference, commit).repository == repository
