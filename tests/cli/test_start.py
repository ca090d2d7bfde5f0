"""What starts light stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "transformers", "huggingface_hub", "safetensors", "sentencepiece", "tokenizers"}
RUNNING = {"ropeconv.engines", "ropeconv.validate", "ropeconv.evaluate"}
"""Packages that run models."""
WATCH = """
import sys
from ropeconv.cli.app import app
from ropeconv.cli.process import run
sys.argv = ["ropeconv", *sys.argv[1:]]
code = run(app)
names = {part for name in sys.modules for part in (name.split(".")[0], ".".join(name.split(".")[:2]))}
print("LOADED", *sorted(names), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("list", "runtimes"),
        ("inspect", "model"),
        ("apply", "model", "--mixed", "4", "--dry-run", "--json"),
        *(pytest.param(("list", name), marks=pytest.mark.nightly) for name in ("methods", "families", "archs")),
    ],
)
def test_no_heavy_module_is_imported(llama: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", WATCH, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split()[1:])
    assert loaded
    assert not loaded & HEAVY
    if arguments == ("--help",):
        assert "numpy" not in loaded
    if arguments[0] == "inspect":
        assert "ropeconv.rope" in loaded
        assert not loaded & RUNNING
