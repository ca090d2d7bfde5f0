"""Requests that are cancelled, left alone, killed, or take too much: nothing of them stays."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.features.ui.forms import BakeForm, ModelForm
from ropeconv.features.ui.front import Front
from ropeconv.features.ui.job import PageJob
from ropeconv.features.ui.server import _listening
from ropeconv.features.ui.sheet import PageAnswer
from ropeconv.rope.errors import RopeconvError

from ...support.hub_writing import WritingHub
from ...support.in_process import command
from ...support.waiting import until
from .conftest import Site
from .visitor import Visitor, served


def workers(root: int) -> list[int]:
    """The processes of requests below a process: children of the one that they are forked from,
    with its command.
    """
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            above = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if above == root and b"forkserver" in command:
            pids.append(int(folder.name))
    return pids


def left(folder: Path, before: set[Path]) -> list[Path]:
    """What is in a folder, and in that for temporary files, that was not there before."""
    scratch = set(Path(tempfile.gettempdir()).glob(f"ropeconv-{os.getuid()}-*"))
    return sorted((set(folder.iterdir()) | scratch) - before - {folder / "home"})


@pytest.fixture
def slow(site: Site) -> Iterator[WritingHub]:
    """A Hub that holds back whole files of weights."""
    site.hub.open.clear()
    yield site.hub
    site.hub.open.set()


@pytest.fixture
def form(llama: Path, tmp_path: Path) -> BakeForm:
    """A bake of the model to a folder `out`."""
    return BakeForm(source=str(llama), method="yarn", value="4", out=str(tmp_path / "out"))


def begin(visitor: Visitor, site: Site, name: str) -> set[Path]:
    """Begins to write a folder from the Hub, and returns what is on the disk in the middle but not
    before.
    """
    before = set(site.folder.iterdir()) | set(
        Path(tempfile.gettempdir()).glob(f"ropeconv-{os.getuid()}-*")
    )
    visitor.open("", source="them/llama", method="yarn", value="4", out=name)
    visitor.answer()
    visitor.press("write")
    until(lambda: visitor.all("#answer progress"), "the progress")
    until(lambda: left(site.folder, before), "files")
    until(lambda: workers(site.process.pid), "the process")
    return before


@pytest.mark.nightly
def test_cancel_leaves_nothing(visitor: Visitor, site: Site, slow: WritingHub) -> None:
    before = begin(visitor, site, "cancelled")
    visitor.driver.execute_script(
        "for (const one of document.querySelectorAll('.answer')) one.dataset.old = 1"
    )
    visitor.first("button#cancel").click()
    assert visitor.answer().startswith("Cancelled")
    assert left(site.folder, before) == []
    until(lambda: not workers(site.process.pid), "the end of the process")


def test_ctrl_c_ends_the_page_and_leaves_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as (_, process):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert (tmp_path / "ui.log").read_text().endswith("closed.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["ui.log"]


EARLY = """
import os, signal
from ropeconv.features.ui.job import prepare
prepare()
try:
    os.killpg(0, signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_the_page_starts_prints_nothing_of_its_other_processes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, start_new_session=True
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def ask(task: str, form: ModelForm | BakeForm, seconds: float | None = 60) -> PageAnswer:
    *_, last = PageJob(task, form, seconds).messages()
    assert isinstance(last, PageAnswer)
    return last


def test_a_request_that_takes_too_long_is_stopped_and_leaves_what_others_keep(
    form: BakeForm, tmp_path: Path
) -> None:
    kept = tmp_path / ".out.ropeconv-partial"  # of a run of the command line
    kept.mkdir()
    (kept / "journal").write_text("")
    late = ask("write", form, seconds=0.0)
    assert late.failed
    assert "0 seconds" in late.html
    assert list(tmp_path.glob("*out*")) == [kept]
    assert (kept / "journal").exists()


def test_a_process_that_is_killed_is_an_answer(llama: Path) -> None:
    job = PageJob("inspect", ModelForm(source=str(llama)), 60)
    job._process.kill()
    (answer,) = [message for message in job.messages() if isinstance(message, PageAnswer)]
    assert answer.failed
    assert "without an answer" in answer.html


def test_a_stopped_request_does_not_answer_in_place_of_the_next(
    form: BakeForm, llama: Path
) -> None:
    front = Front()
    first = front.answers("inspect", ModelForm(source=str(llama)), "page")
    assert (
        "model-yarn4"
        in list(
            front.answers("plan", BakeForm(source=str(llama), method="yarn", value="4"), "page")
        )[-1]
    )
    assert list(first)  # nothing was asked before: it begins now
    begun = front.answers("write", form, "page")
    assert "progress" in next(begun)
    front.stop("another page")
    front.stop("page")
    assert "Cancelled" in list(begun)[-1]


def test_ports_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command(tmp_path, "ui", "--no-browser", "--port", port, code=1)
        assert re.fullmatch(f"ropeconv: port {port} is taken; .*--port\n", done.stderr)
    refused = pytest.raises(RopeconvError, match=r"^port 7 .*\(.*\); .*--port$")
    with refused, _listening("203.0.113.1", 7):  # an address that this machine does not have
        pass
    command(tmp_path, "ui", "--port", "0", code=2)


def test_a_second_bake_on_a_page_is_refused_and_keeps_nobody_else_waiting(form: BakeForm) -> None:
    front = Front()
    running = front.answers("write", form, "page", baking=True)
    next(running)
    held = workers(os.getpid())
    for worker in held:
        os.kill(worker, signal.SIGSTOP)
    assert "is running" in next(front.answers("plan", form, "page"))  # and is looked at no further
    asking = threading.Thread(
        target=lambda: list(front.answers("plan", form, "another page")), daemon=True
    )
    asking.start()
    asking.join(60)
    assert not asking.is_alive()
    front.stop("page")
    for worker in held:
        os.kill(worker, signal.SIGCONT)
    assert "Cancelled" in list(running)[-1]
