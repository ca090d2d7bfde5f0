"""Fixtures: the command line in the process of the tests, and in a process of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ..conftest import Run, run_in
from ..support.in_process import command


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The command line in the test's folder."""
    return partial(command, tmp_path)


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """The command line in a process of its own, where its start, its streams or its environment matter."""
    return partial(run_in, tmp_path)
