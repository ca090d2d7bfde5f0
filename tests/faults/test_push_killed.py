"""`--push`, killed at each request that it makes: the same command completes it, and nothing stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import hashes
from ..support.extent import ALL, few, tally
from ..support.hub_writing import WritingHub, serving_writes
from .harness import KILLED

BAKE = ("apply", "base/tiny", "--yarn", "16")
COMMANDS = {
    "a config alone": BAKE,
    "changed weights": (*BAKE, "--encoding", "weights"),
    "a private repository": (*BAKE, "--private"),
}
PROGRAM = "import sys; sys.modules['torch'] = None; from ropeconv.cli import main; main()"
"""The command line without torch, whose import takes longer than everything else here."""


@pytest.fixture
def hub(llama: Path, tmp_path: Path) -> Iterator[WritingHub]:
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    (llama / "LICENSE").write_text("Terms")
    (tmp_path / "temporary").mkdir()
    with serving_writes(tmp_path / "hub") as running:
        running.repos["base/tiny"] = llama
        yield running


def start(hub: WritingHub, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line, running, with temporary files in a folder of its own."""
    own = {"HF_TOKEN": "hf_sesame", "TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], text=True, cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, **hub.environment(folder / "home"), **own},
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it said on stderr."""
    said = process.communicate(timeout=120)[1]
    return process.returncode, said


def published(folder: Path) -> dict[str, str]:
    """The hashes of the files that are the same in every publication of one plan."""
    same = (".json", ".safetensors", "LICENSE", ".gitattributes")
    return {name: digest for name, digest in hashes(folder).items() if name.endswith(same)}


@pytest.mark.parametrize("what", list(COMMANDS) if ALL else ["a config alone"])
def test_a_killed_push_is_completed_by_the_same_command(what: str, hub: WritingHub, tmp_path: Path) -> None:
    given = COMMANDS[what]
    assert ended(start(hub, tmp_path, *given, "--push", "me/reference"))[0] == 0
    wanted = published(hub.repos["me/reference"])
    cases = [(number, late) for number in range(1, hub.requests + 1) for late in (False, True)]
    refused, kills = [], 0
    for index, (number, late) in enumerate(few(cases, 2)):
        push = (*given, "--push", f"me/killed-{index}")
        hub.requests, hub.kill_at, hub.kill_late = 0, number, late
        process = start(hub, tmp_path, *push)
        hub.victim = process.pid
        kills += ended(process)[0] == KILLED
        hub.kill_at = 0
        code, problem = ended(start(hub, tmp_path, *push))
        if code != 0 or published(hub.repos[push[-1]]) != wanted:
            refused.append((number, late, problem))
        assert list((tmp_path / "temporary").iterdir()) == [], (number, late)
        assert (push[-1] in hub.private) == ("--private" in given)
    tally("kill", f"push, {what}", kills, len(refused))
    assert refused == []
    assert kills, "the kills must have happened"
