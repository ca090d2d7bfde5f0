"""Fixtures: the command line in the process of the tests, with one probe for all commands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ropeconv.engines.probe import Probe, SharedProbe

from ..conftest import Run, run_in
from ..support.in_process import command


@pytest.fixture(scope="session")
def shared_probe() -> Iterator[SharedProbe]:
    """The installed transformers, started with the first question that the cache does not answer."""
    found = SharedProbe()
    yield found
    if "process" in found.__dict__:
        Probe.stop(found)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_probe: SharedProbe) -> Run:
    """The command line in the test's folder."""
    one = type("OneProbe", (Probe,), {"__new__": lambda cls, *given: Probe(*given) if given else shared_probe})
    monkeypatch.setattr("ropeconv.engines.probe.Probe", one)
    return partial(command, tmp_path)


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """The command line in a process of its own, where its start, its streams or its environment matter."""
    return partial(run_in, tmp_path)
