"""Fixtures: the command line in the process of the tests, and in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ..conftest import Run, hashes, run_in
from ..support.in_process import command

Refuses = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The command line in the test's folder."""
    return partial(command, tmp_path)


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """The command line in a process of its own, where its start, its streams or its environment matter."""
    return partial(run_in, tmp_path)


@pytest.fixture
def refuses(run: Run, tmp_path: Path) -> Refuses:
    """Runs a command that ends with `code` and one sentence with `words`, and that prints and writes nothing."""

    def check(code: int, words: str, *arguments: object) -> None:
        before, entries = hashes(tmp_path), sorted(tmp_path.rglob("*"))
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("ropeconv: ")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert (hashes(tmp_path), sorted(tmp_path.rglob("*"))) == (before, entries)

    return check
