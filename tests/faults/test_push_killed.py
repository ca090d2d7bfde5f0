"""`--push`, killed at each request that it makes: the same command completes it, and nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from ..conftest import hashes
from ..support.extent import ALL, sample, tally
from ..support.hub_writing import WritingHub, serving_writes
from .harness import KILLED, Fault, Mode, Outcome, Server

COMMANDS = {
    "a config alone": ("apply", "base/tiny", "--yarn", "16"),
    "changed weights": ("apply", "base/tiny", "--yarn", "16", "--encoding", "weights"),
    "a private branch": ("apply", "base/tiny", "--yarn", "16", "--private", "--revision", "longer"),
}
PROGRAM = "import sys; sys.modules['torch'] = None; from ropeconv.cli import main; main()"
"""The command line without torch, whose import takes longer than everything else here."""
SAME = (".json", ".safetensors", "LICENSE", ".gitattributes")


class Place(NamedTuple):
    """A folder of a test with its Hub."""

    folder: Path
    hub: WritingHub

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """The command line, running, with temporary files in a folder of its own."""
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        home = self.hub.environment(self.folder / "home")
        environment = {**os.environ, **home, "HF_TOKEN": "hf_sesame", "TMPDIR": str(temporary), **more}
        command = [sys.executable, "-c", PROGRAM, *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, cwd=self.folder, env=environment, **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, *arguments: str, **more: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of the command line."""
        process = self.start(*arguments, **more)
        out, problem = process.communicate(timeout=120)
        return process.returncode, out, problem

    def killed(self, number: int, late: bool, *arguments: str) -> int:
        """The exit code of the command line, which is killed at its request of that number.

        number: counted from 1. late: after the request had its effect. arguments: of the command line.
        """
        self.hub.requests, self.hub.kill_at, self.hub.kill_late = 0, number, late
        process = self.start(*arguments)
        self.hub.victim = process.pid
        process.communicate(timeout=120)
        self.hub.kill_at = 0
        return process.returncode

    def left(self) -> list[str]:
        """What is among the temporary files."""
        return sorted(path.name for path in self.folder.joinpath("temporary").iterdir())


@pytest.fixture
def place(llama: Path, tmp_path: Path) -> Iterator[Place]:
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    (llama / "LICENSE").write_text("Terms")
    with serving_writes(tmp_path / "hub") as hub:
        hub.repos["base/tiny"] = llama
        yield Place(tmp_path, hub)


def published(folder: Path) -> dict[str, str]:
    """The hashes of the files that are the same in every publication of one plan."""
    return {name: digest for name, digest in hashes(folder).items() if name.endswith(SAME)}


@pytest.mark.parametrize("what", list(COMMANDS) if ALL else ["a config alone"])
def test_a_killed_push_is_completed_by_the_same_command(what: str, place: Place) -> None:
    hub, given = place.hub, COMMANDS[what]
    assert place.run(*given, "--push", "me/reference")[0] == 0
    wanted, count = published(hub.repos["me/reference"]), hub.requests
    cases = [(number, late) for number in range(1, count + 1) for late in (False, True)]
    refused, kills = [], 0
    for index, (number, late) in enumerate(sample(cases, 4)):
        name = f"me/killed-{index}"
        kills += place.killed(number, late, *given, "--push", name) == -9
        code, _, problem = place.run(*given, "--push", name)
        if code != 0 or published(hub.repos[name]) != wanted:
            refused.append((number, late, problem))
        assert place.left() == [], (number, late)
        assert (name in hub.private) == ("--private" in given)
    assert refused == []
    assert kills >= 3, "the kills must have happened"
    tally("kill", f"push, {what}", kills, len(refused))


@pytest.mark.parametrize("mode", [Mode.KILL, Mode.KILL_HALF])
def test_a_push_killed_at_a_writing_call_is_completed(mode: Mode, place: Place, server: Server) -> None:
    def run(number: int, fault: Fault | None) -> Outcome:
        folder = place.folder / f"run-{number}"
        (folder / "temporary").mkdir(parents=True, exist_ok=True)
        given = (*COMMANDS["changed weights"], "--push", f"me/run-{number}")
        return server.run(folder, ("on-hub", place.hub.url, *given), fault)

    calls = run(0, Fault(Mode.COUNT)).calls()
    wanted, refused = published(place.hub.repos["me/run-0"]), {}
    numbers = sample([number for number, call in enumerate(calls, 1) if mode is Mode.KILL or call.moves], 3)
    for number in numbers:
        assert run(number, Fault(mode, number)).code == KILLED
        again = run(number, None)
        left = list((place.folder / f"run-{number}" / "temporary").iterdir())
        if again.code != 0 or left or published(place.hub.repos[f"me/run-{number}"]) != wanted:
            refused[number] = (again.output, left)
    tally("kill", f"push, writing calls, {mode.name}", len(numbers), len(refused))
    assert refused == {}
    assert len(numbers) >= 3


@pytest.mark.parametrize("other", [("--yarn", "16"), ("--linear", "8")])
def test_two_pushes_at_once_leave_one_whole_output(other: tuple[str, str], place: Place) -> None:
    hub, mixed = place.hub, []
    repeats = range(10 if ALL else 2)
    for number in repeats:
        name = f"me/pair-{number}"
        pair = [place.start("apply", "base/tiny", *how, "--push", name) for how in (("--yarn", "16"), other)]
        said = [process.communicate(timeout=120)[1] for process in pair]
        codes = sorted(process.returncode for process in pair)
        assert codes in ([0, 0], [0, 1]), said
        assert all("me/pair" in words for words, process in zip(said, pair, strict=True) if process.returncode), said
        listed = {file["name"]: file for file in json.loads((hub.repos[name] / "ropeconv.json").read_text())["files"]}
        there = hashes(hub.repos[name])
        if any(there[name] != file["sha256"] for name, file in listed.items() if name in there and file["sha256"]):
            mixed.append(number)
        assert there.keys() >= listed.keys() - {"README.md"}
    assert mixed == []
    tally("pairs", "push to one repository", len(repeats), len(mixed))


def test_a_folder_in_use_is_not_cleared_and_a_link_is_not_followed(place: Place) -> None:
    program = (
        "import sys, time\nfrom ropeconv.formats.scratch import scratch\n"
        "with scratch() as folder:\n print(folder, flush=True)\n time.sleep(float(sys.argv[1]))"
    )
    temporary = place.folder / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    running = []
    for _ in range(2):
        command = [sys.executable, "-c", program, "60"]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        dead, live = (Path(process.stdout.readline().strip()) for process in running if process.stdout)
        (dead / "deep").mkdir()
        (dead / "deep" / "config.json").write_text("{}")
        kept = place.folder / "kept"
        kept.mkdir()
        (kept / "file").write_text("stays")
        (dead / "link").symlink_to(kept)
        link = temporary / f"ropeconv-{os.getuid()}-1-link"
        link.symlink_to(kept)
        foreign = temporary / "ropeconv-other"
        foreign.mkdir()
        running[0].kill()
        running[0].wait()
        assert dead.is_dir(), "a kill leaves it"
        subprocess.run([sys.executable, "-c", program, "0"], env=environment, check=True, capture_output=True)
        assert (dead.exists(), live.is_dir(), foreign.is_dir()) == (False, True, True)
        assert link.is_symlink()
        assert (kept / "file").read_text() == "stays"
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                process.kill()
            process.communicate()
