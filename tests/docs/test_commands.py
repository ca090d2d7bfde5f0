"""The commands in pages of docs/: those with output print it, and the others run on a small model."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from scripts import transcripts
from scripts.transcripts import ROOT, Transcript, fits

from ..support.extent import sample
from ..support.in_process import command
from ..validate.servers.stand_in import StandIn, running

RUN = ("engines.md", "faq.md")
"""Pages of which every command runs on a small model."""
OWNERS = {"8000": "vllm", "30000": "sglang"}
"""Servers of the pages by their ports."""


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text("utf-8")


def shown(page: str) -> list[Transcript]:
    """The commands of a page that have their output."""
    found = [
        one for match in transcripts.BLOCK.finditer(text_of(page)) for one in transcripts.transcripts(match["body"])
    ]
    return [one for one in found if one.command not in transcripts.OF_WEIGHTS]


def bare(page: str) -> list[str]:
    """The commands of ropeconv in blocks of shell, in their order, without comments and redirections."""
    blocks = [match["body"] for match in transcripts.FENCED.finditer(text_of(page)) if not match["language"]]
    lines = [line for body in blocks for line in body.replace("\\\n", " ").splitlines()]
    commands = [line.partition(" > ")[0] for line in lines if line.startswith("ropeconv ")]
    return [" ".join(shlex.split(one, comments=True)) for one in commands]


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


CASES = [(page, one) for page in (transcripts.PAGES[0], *sample(transcripts.PAGES[1:], 1)) for one in shown(page)]


@pytest.mark.parametrize(("page", "one"), CASES, ids=lambda one: getattr(one, "command", ""))
def test_a_command_prints_what_its_page_shows(beside: Path, page: str, one: Transcript) -> None:
    real = transcripts.output_of(one.command, beside)
    assert fits(one.shown, real), f"run python scripts/transcripts.py {page}; it prints\n{real}"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("page", [*RUN, "training.md"])
def test_the_commands_of_a_page_run_one_after_the_other(small: Path, tmp_path: Path, page: str) -> None:
    shutil.copytree(small, tmp_path / "own")
    commands = bare(page)
    assert commands
    for one in commands:
        ran(tmp_path / "own", one)


@pytest.mark.parametrize("page", ["faq.md", pytest.param("engines.md", marks=pytest.mark.nightly)])
def test_commands_inside_sentences_and_tables_run(small: Path, page: str) -> None:
    """Those that name no METAVAR; what would write is only planned."""
    text = transcripts.FENCED.sub("", text_of(page))
    commands = [one for one in re.findall(r"`(ropeconv [\w-]+ [^`]+)`", text) if not re.search(r"\b[A-Z]{3,}\b", one)]
    assert commands
    for one in commands:
        ran(small, f"{one} --dry-run" if " apply " in one else one)
