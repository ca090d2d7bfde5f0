"""Results in files: what was written is read, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import RopeconvError
from ropeconv.evaluate.result import read_result, write_result

from .results import made


def test_it_is_the_same_result(tmp_path: Path) -> None:
    result = made()
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result
    data = json.loads((tmp_path / "result.json").read_text())
    assert data["schema"] == 2
    assert data["cells"][0]["row"] == "base"


def changed(change: dict[str, Any], cell: dict[str, Any], path: Path) -> Path:
    write_result(made(measures=["growth"]), path)
    data = json.loads(path.read_text()) | change
    data["cells"] = [{**data["cells"][0], **cell}, *data["cells"][1:]] if "cells" in data else []
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "cell", "said"),
    [
        ({"schema": 99}, {}, "later ropeconv"),
        ({"trained": "many"}, {}, "trained"),
        ({"rows": []}, {}, "no evaluation writes"),
        ({}, {"value": float("nan")}, "no evaluation writes"),
        ({}, {"value": None}, "not as it has to be"),
        ({}, {"row": "another"}, "cell of another"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: dict[str, Any], cell: dict[str, Any], said: str) -> None:
    path = changed(change, cell, tmp_path / "result.json")
    with pytest.raises(RopeconvError, match=said):
        read_result(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 2, "recipe": {}}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RopeconvError, match=r"x\.json"):
        read_result(tmp_path / "x.json")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RopeconvError, match="ropeconv eval -o"):
        read_result(tmp_path / "missing.json")
