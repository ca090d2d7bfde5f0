"""`ropeconv restore` on the command line, and what is known of an output by its receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Run, hashes
from ..support.gguf_files import write


@pytest.fixture
def output(run: Run, llama: Path, tmp_path: Path) -> Path:
    assert run("apply", "model", "--ntk", "4", "-q").returncode == 0
    return tmp_path / "model-ntk4"


def test_a_folder(run: Run, llama: Path, output: Path, tmp_path: Path) -> None:
    plan = json.loads(run("restore", "model-ntk4", "--dry-run", "--json").stdout)
    assert (plan["out"], plan["first"]["name"], plan["in_place"]) == ("model-restored", "model", False)
    assert not (tmp_path / "model-restored").exists()
    done = run("restore", "model-ntk4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("Wrote model-restored")
    assert "The source was the local folder 'model'." in done.stdout
    assert hashes(tmp_path / "model-restored") == hashes(llama)
    again = run("restore", "model-ntk4")
    assert (again.returncode, "exists" in again.stderr) == (1, True)
    assert run("restore", "model-ntk4", "--in-place").returncode == 2
    assert "is not an output of ropeconv" in run("restore", "model").stderr


def test_a_gguf_file(run: Run, tmp_path: Path) -> None:
    original = write(tmp_path / "model.gguf").read_bytes()
    assert run("apply", "model.gguf", "--mixed", "4", "-q").returncode == 0
    assert run("restore", "model-mixed4.gguf").returncode == 0
    assert (tmp_path / "model-restored.gguf").read_bytes() == original
    assert run("restore", "model-mixed4.gguf", "-o", "folder").returncode == 2
