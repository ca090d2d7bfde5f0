"""The commands in pages of docs/: those with output print it, and the others run on a small
model.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from scripts.pages import transcripts
from scripts.pages.transcripts import ROOT, TUTORIAL, Transcript, fits
from scripts.real_model import Unavailable

from ..features.servers.stand_in import StandIn, running
from ..support.extent import sample
from ..support.in_process import command

RUN = ("../README.md", "engines.md")
"""Pages of which every command runs on a small model."""
SMALL = {
    "Qwen/Qwen2.5-7B-Instruct": "Qwen3-8B",
    "Qwen3-8B-Q4_K_M.gguf": "Qwen3-8B-Q8_0.gguf",
    "128k": "256",
}
"""What stands for models and lengths of README.md. The small model is trained with 64 tokens."""
OWNERS = {"8000": "vllm", "30000": "sglang"}
"""Servers of the pages by their ports."""


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text("utf-8")


def shown(page: str) -> list[Transcript]:
    """The commands of a page that have their output."""
    entries = [
        entry
        for match in transcripts.BLOCK.finditer(text_of(page))
        for entry in transcripts.transcripts(match["body"])
    ]
    return [entry for entry in entries if entry.command not in transcripts.OF_WEIGHTS]


def bare(page: str) -> list[str]:
    """The commands of ropeconv in blocks of shell, in their order, without comments and
    redirections.
    """
    text = text_of(page)
    if page == "../README.md":
        for name, stand_in in SMALL.items():
            text = text.replace(name, stand_in)
    blocks = [
        match["body"]
        for match in transcripts.FENCED.finditer(text)
        if match["language"] in ("", "sh")
    ]
    lines = [line for body in blocks for line in body.replace("\\\n", " ").splitlines()]
    commands = [
        line.partition(" > ")[0]
        for line in lines
        if line.startswith("ropeconv ") and "--push" not in line
    ]
    return [" ".join(shlex.split(invocation, comments=True)) for invocation in commands]


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return transcripts.published(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return transcripts.small_models(tmp_path_factory.mktemp("small") / "models")


def ran(small: Path, text: str) -> None:
    """Runs a command of a page; one that asks a server gets a stand-in that runs the output."""
    words = shlex.split(text)[1:]
    if "--server" not in words:
        command(small, *words, code=0)
        return
    at = words.index("--server") + 1
    server = StandIn(OWNERS[words[at].rpartition(":")[2]], small / words[1], length=256)
    with running(server) as url:
        command(small, *words[:at], url, *words[at + 1 :], code=0)


def printed(folder: Path, page: str) -> list[str]:
    """Runs the commands of a page one after the other, since some need what an earlier one wrote.

    Returns what those print whose output is not that of the page.
    """
    outputs = [(entry, transcripts.output_of(entry.command, folder)) for entry in shown(page)]
    return [
        f"$ {entry.command}\n{output}" for entry, output in outputs if not fits(entry.shown, output)
    ]


@pytest.mark.parametrize("page", sample([page for page in transcripts.PAGES if shown(page)], 1))
def test_the_commands_of_a_page_print_what_it_shows(beside: Path, page: str) -> None:
    assert printed(beside, page) == [], f"run python -m scripts.pages transcripts {page}"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("page", [*RUN, "training.md"])
def test_the_commands_of_a_page_run_one_after_the_other(
    small: Path, tmp_path: Path, page: str
) -> None:
    shutil.copytree(small, tmp_path / "own")
    commands = bare(page)
    assert commands
    for line in commands:
        ran(tmp_path / "own", line)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    try:
        folder = transcripts.tutorial(tmp_path)
    except Unavailable as problem:
        pytest.skip(str(problem))
    assert printed(folder, TUTORIAL) == [], f"run python -m scripts.pages transcripts {TUTORIAL}"


def test_commands_inside_sentences_and_tables_run(small: Path) -> None:
    """Those that name no METAVAR; what would write is only planned."""
    text = transcripts.FENCED.sub("", text_of("engines.md"))
    commands = [
        cmd
        for cmd in re.findall(r"`(ropeconv [\w-]+ [^`]+)`", text)
        if not re.search(r"\b[A-Z]{3,}\b", cmd)
    ]
    assert commands
    for cmd in commands:
        ran(small, f"{cmd} --dry-run" if " apply " in cmd else cmd)
