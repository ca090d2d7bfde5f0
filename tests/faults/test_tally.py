"""The table of `python -m scripts.faults`: the cases and failures of all tests of one kind are
added.
"""

import json
from pathlib import Path

import pytest

from scripts.faults import table

from ..support.extent import tally


def test_cases_of_one_kind_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPECONV_FAULTS_TALLY", str(tmp_path / "tally"))
    tally("kill", "apply", 1200)
    tally("input", "config.json", 7)
    tally("kill", "apply", 34, failed=2)
    lines = table((tmp_path / "tally").read_text()).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["input", "config.json", "7", "0"],
        ["kill", "apply", "1,234", "2"],
    ]


def test_a_kind_is_not_added_to_another() -> None:
    text = "\n".join(json.dumps(["kill", what, 1, 0]) for what in ("apply", "restore"))
    assert len(table(text).splitlines()) == 3
