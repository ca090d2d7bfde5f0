"""Damage in a data file of the package is said of that file, with the field, and not of what the user gave."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ropeconv

from ..faults.inputs.folders import small_config
from ..support.extent import sample


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package and of the templates, and a config.json."""
    folder = tmp_path_factory.mktemp("installed")
    package = Path(ropeconv.__file__).parent
    shutil.copytree(package, folder / "ropeconv", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "config.json").write_text(json.dumps(small_config()))
    return folder


def inspect(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "ropeconv", "inspect", "config.json"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


DAMAGES = [
    ("runtimes/data/transformers-*.toml", r"^version = .*$", "version = 5", r"Expected `str`, got `int`.*version"),
    ("runtimes/data/vllm-*.toml", r"^version = .*$", "version = [", "at line"),
    ("runtimes/data/sglang-*.toml", r'^rules = "[^"]*"$', 'rules = "typo"', "it has no 'typo'"),
    ("families/data/llama.toml", r"^display_name", "displayed_name", "unknown field `displayed_name`"),
    ("runtimes/lab/*.json", r'"date"', '"when"', "(missing required|unknown) field `(date|when)`"),
]


@pytest.mark.parametrize(("pattern", "old", "new", "said"), sample(DAMAGES, 1))
def test_damage_is_said_of_the_file_of_the_package(copy: Path, pattern: str, old: str, new: str, said: str) -> None:
    matching = (path for path in sorted((copy / "ropeconv").glob(pattern)) if re.search(old, path.read_text(), re.M))
    path = next(matching)
    before = path.read_text()
    path.write_text(re.sub(old, new, before, count=1, flags=re.M))
    try:
        done = inspect(copy)
    finally:
        path.write_text(before)
    assert done.returncode == 1
    assert done.stderr.startswith(f"ropeconv: {path} belongs to ropeconv and is not as it has to be (")
    assert re.search(said, done.stderr), done.stderr
    assert "config.json" not in done.stderr
    whole = inspect(copy)
    assert whole.returncode == 0, whole.stderr
    assert "config.json" in whole.stdout
