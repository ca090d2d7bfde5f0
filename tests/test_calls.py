"""Forty calls as people write them: each runs, and a type checker accepts them all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .support.llamacpp import tokenizer_json

ROOT = Path(__file__).parents[1]
IMPORTS = """\
import contextlib
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import ropeconv
"""
_, *CALLS = (ROOT / "tests" / "data" / "natural_calls.txt").read_text("utf-8").split("# ---\n")


@pytest.fixture
def folder(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model of a well-known name, and a text."""
    llama.rename(tmp_path / "Llama-2-7b-hf")
    (tmp_path / "Llama-2-7b-hf" / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "book.txt").write_text("the cat sat on the mat " * 4000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_there_are_forty_of_at_most_four_lines() -> None:
    assert len(CALLS) >= 40
    assert max(len(call.splitlines()) for call in CALLS) <= 4


@pytest.mark.parametrize("call", CALLS, ids=[f"call {number}" for number in range(len(CALLS))])
def test_a_natural_call_runs(call: str, folder: Path) -> None:
    exec(compile(IMPORTS + call, call, "exec"), {})


def test_a_type_checker_accepts_them(tmp_path: Path) -> None:
    functions = []
    for number, call in enumerate(CALLS):
        body = "".join(f"    {line}\n" for line in call.splitlines())
        functions.append(f"def call_{number}() -> None:\n{body}")
    script = tmp_path / "calls.py"
    script.write_text(IMPORTS + "\n\n" + "\n\n".join(functions))
    command = ["-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, *command, str(script)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
