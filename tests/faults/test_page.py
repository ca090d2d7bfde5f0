"""The page's Write button under faults: its request is sent as a browser sends it, its process is
struck, and the button is pressed again.
"""

import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from zlib import crc32

import pytest

from ..support.extent import few, tally
from . import scenes
from .bench import Bench
from .cases import Case
from .harness import ENDED, KILLED, Fault, Mode, Server, not_durable
from .page_server import PageServer
from .test_kills import KINDS

WRITE = Case(scenes.checkpoint, ("page", "model", "out"), ("out",))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    pytest.importorskip("gradio")
    pytest.importorskip("ropeconv.features.ui")
    if platform.libc_ver()[0] != "glibc" or not shutil.which("cc"):
        pytest.skip("the shim counts the calls of glibc, and a C compiler makes it")
    folder = tmp_path_factory.mktemp("page")
    server = PageServer(tmp_path_factory.mktemp("page-server"))
    try:
        yield Bench(cast(Server, server), folder, WRITE)
    finally:
        server.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_the_request_of_the_write_button(page: Bench, kind: str) -> None:
    faults = few(KINDS[kind](page), 3, crc32(f"{kind} page".encode()))
    expected = {"kill": {KILLED}, "power": {KILLED}, "sigterm": {ENDED, 0}}.get(kind, {0, 1})
    wrong = {}
    for fault, cut in faults:
        aftermath = page.strike(fault, cut)
        problem = page.wrong(aftermath)
        if aftermath.outcome.code not in expected:
            problem = f"ended in {aftermath.outcome.code}: {aftermath.outcome.output} {problem}"
        if problem:
            wrong[f"{fault} {cut}"] = problem
    tally(kind, "Write of the page", len(faults), len(wrong))
    assert wrong == {}


def test_a_written_output_is_on_the_disk(page: Bench) -> None:
    folder = page.copy()
    outcome = page.server.run(folder, page.case.command, Fault(Mode.COUNT))
    assert outcome.code == 0
    assert not_durable(folder, outcome.report) == []
    tally("durable", "Write of the page", 1)


def test_a_request_that_is_stopped_in_the_middle_keeps_nothing(page: Bench) -> None:
    middle = len(page.expected[1]) // 2
    aftermath = page.strike(Fault(Mode.TERM, middle))
    assert aftermath.outcome.code == ENDED, aftermath.outcome.output
    assert aftermath.after == page.tree(page.ready)


def test_the_request_writes_what_the_task_writes(
    page: Bench, server: Server, tmp_path: Path
) -> None:
    """The negative control: requests that did nothing would lose nothing."""
    calls = page.expected[1]
    assert len(calls) > 50
    scenes.checkpoint(tmp_path)
    assert server.run(tmp_path, WRITE.command).code == 0
    assert page.tree(tmp_path) == page.expected[0]
