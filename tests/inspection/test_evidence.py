"""Facts for pages of evidence: sizes of files and folders, and the time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ropeconv.inspection.evidence import described_size, now


def test_a_file_and_folders_with_files_below(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(1500))
    assert described_size(tmp_path / "one") == "1.5 KiB"
    assert described_size(tmp_path) == "1.5 KiB in 1 file"
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "two").write_bytes(bytes(36))
    assert described_size(tmp_path) == "1.5 KiB in 2 files"


@pytest.mark.parametrize("name", ["nothing", "meta-llama/Llama-2-7b-hf", "http://localhost:8000"])
def test_what_is_not_there_has_no_size(tmp_path: Path, name: str) -> None:
    assert described_size(tmp_path / name) == ""


def test_the_time_is_in_utc() -> None:
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", now())
