"""Publishing under faults: whatever happens to the disk, the network, the Hub or the token, nothing
is half published, the same command completes it, and the token is in no output, file or process
list.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ..conftest import hashes
from ..support.extent import ALL, EACH, few, tally
from ..support.hub_server import running
from ..support.hub_writing import WritingHub, writing
from . import scenes
from .cases import ropeconv
from .harness import ENDED, KILLED, Fault, Mode, Outcome, Server

TOKEN = "hf_7hIsMustNotAppear"
COMMANDS = {
    "apply --push": "apply base/tiny --yarn 4 --push REPO",
    "apply --push, weights": "apply base/tiny --yarn 4 --encoding weights --push REPO",
    "apply --push --private": "apply base/tiny --yarn 4 --push REPO --private",
    "push": "push FOLDER/out REPO",
    "push, GGUF": "push FOLDER/out.gguf REPO",
    "push --revision": "push FOLDER/out REPO --revision wide",
    "profiles --push": "profiles base/tiny yarn:2 yarn:4 --push REPO",
    "push --private": "push FOLDER/out REPO --private",
    "push --public": "push FOLDER/out REPO --public",
    "profiles --push --private": "profiles base/tiny yarn:2 yarn:4 --push REPO --private",
    "push --exist-ok": "push FOLDER/out REPO --exist-ok",
    "push --overwrite-card": "push FOLDER/out REPO --exist-ok --overwrite-card",
    "push --exist-ok --revision": "push FOLDER/out REPO --exist-ok --revision wide",
    "push --create-pr": "push FOLDER/out REPO --create-pr",
    "apply --push --create-pr": "apply base/tiny --yarn 4 --push REPO --create-pr",
}
"""Commands that publish. FOLDER has outputs; REPO is the repository."""
INTO_ANOTHER = ("--exist-ok", "--create-pr")
"""Options with which the repository exists, and has files of somebody else."""


class FaultyHub(WritingHub):
    """A Hub with a fault at one of its requests. fault_at: its number, 0 for none. how: a key of FAULTS."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fault_at = 0
        self.how = ""
        self.in_processes: list[str] = []

    def kills(self) -> bool:
        return False

    def strikes(self) -> str:
        """Count a request, and return the fault that it meets; empty for none."""
        with self.counting:
            self.requests += 1
            number = self.requests
        self.in_processes += processes_with(TOKEN)
        if not self.fault_at:
            return ""
        lasting = self.how.endswith("from then on")
        return self.how if number == self.fault_at or (lasting and number > self.fault_at) else ""


FAULTS = (
    "429 once",
    "500 once",
    "500 from then on",
    "cut once",
    "cut from then on",
    "cut after its effect",
    "token revoked from then on",
)


def processes_with(secret: str) -> list[str]:
    """The processes that show a secret in the list that every user can read."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes()
        except OSError:
            continue
        if secret.encode() in words:
            found.append(str(place))
    return found


def faulty(hub: FaultyHub) -> type[BaseHTTPRequestHandler]:
    class Handler(writing(hub)):  # type: ignore[misc]
        fault = ""

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            self.fault = hub.strikes()
            if not self.fault or self.fault == "cut after its effect":
                return True
            self.read()
            status = self.fault.split()[0]
            fault, self.fault = self.fault, ""
            if fault.startswith("cut"):
                self.close_connection = True
            elif fault.startswith("token"):
                self.json(401, {"error": f"Invalid credentials: {TOKEN}"})
            else:
                self.json(int(status), {"error": "try later"}, {"Retry-After": "1"})
            return False

        def reply(
            self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None
        ) -> None:
            if self.fault:
                self.close_connection = True
                return
            super().reply(status, content, body, headers)

    return Handler


class Place:
    """A running Hub, the process that commands are forked from, and what a publication leaves.

    outputs: a folder with `out` and `out.gguf`. temporary: where commands run and keep temporary
    files.
    """

    def __init__(self, folder: Path, hub: FaultyHub) -> None:
        self.hub = hub
        self.outputs = folder / "outputs"
        self.temporary = folder / "temporary"
        self.home = folder / "home"
        for made in (self.outputs, self.temporary, self.home):
            made.mkdir()
        scenes.checkpoint(self.outputs)
        scenes.gguf_file(self.outputs)
        shutil.copytree(self.outputs / "model", folder / "base")
        (folder / "base" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
        (folder / "base" / "LICENSE").write_text("Terms")
        hub.repos["base/tiny"] = folder / "base"
        variables = {
            "HF_TOKEN": TOKEN,
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "TMPDIR": str(self.temporary),
        }
        server_folder = folder / "server"
        server_folder.mkdir()
        self.server = Server(
            server_folder, more={**hub.environment(self.home / "hub"), **variables}
        )
        for command in ("apply model --yarn 4 -o out", "apply model.gguf --yarn 4 -o out.gguf"):
            assert self.server.run(self.outputs, ropeconv(command)).code == 0
        self._count = 0
        self._expected: dict[str, tuple[dict[str, dict[str, str]], int, int]] = {}

    def words(self, name: str, repo: str) -> tuple[str, ...]:
        text = COMMANDS[name].replace("REPO", repo).replace("FOLDER", str(self.outputs))
        return ("publish", *text.split())

    def fresh(self, name: str = "push") -> str:
        """A repository that does not exist, or one of somebody else where the command needs that."""
        self._count += 1
        self.hub.branches.clear()  # the test Hub has one list for all repositories
        repo = f"me/number-{self._count}"
        if any(option in COMMANDS[name] for option in INTO_ANOTHER):
            root = self.hub.root / repo
            root.mkdir(parents=True)
            (root / "theirs.txt").write_text("of somebody else")
            (root / "README.md").write_text("# Theirs\n")
            self.hub.repos[repo] = root
        return repo

    def run(self, words: tuple[str, ...], fault: Fault | None = None) -> Outcome:
        self.hub.requests = 0
        return self.server.run(self.temporary, words, fault)

    def published(self, repo: str) -> dict[str, dict[str, str]]:
        """The branches of a repository with hashes of the files that every publication of one
        command has; none that has no commit.
        """
        branches = {}
        for name, root in self.hub.repos.items():
            if name.partition("@")[0] == repo and set(hashes(root)) != {".gitattributes"}:
                branches[name.removeprefix(repo)] = comparable(root)
        for number, name in enumerate(self.hub.pulls):
            if name == repo:  # another run opens another pull request, with the same files
                files = comparable(self.hub.root / f"pull-{number}")
                same = branches.setdefault("pull request", files) == files
                branches["pull request"] = files if same else {"differ": str(number)}
        return branches

    def expected(self, name: str) -> tuple[dict[str, dict[str, str]], int, int]:
        """What the command publishes without a fault, its requests, and its writing calls."""
        if name not in self._expected:
            repo = self.fresh(name)
            before = self.published(repo)
            outcome = self.run(self.words(name, repo), Fault(Mode.COUNT))
            assert outcome.code == 0, outcome.output
            assert self.published(repo) != before
            calls = len(outcome.calls())
            self._expected[name] = self.published(repo), self.hub.requests, calls
        return self._expected[name]

    def strike(self, name: str, fault: Fault | None) -> str:
        """What is wrong after a fault and after the same command; empty where it is sound."""
        expected, _, _ = self.expected(name)
        repo = self.fresh(name)
        before = self.published(repo)
        words = self.words(name, repo)
        outcome = self.run(words, fault)
        self.hub.fault_at = 0
        if outcome.code != KILLED and not outcome.said():
            return f"ended in {outcome.code}: {outcome.output[-600:]}"
        part = {
            branch: files
            for branch, files in self.published(repo).items()
            if files not in (expected.get(branch), before.get(branch))
        }
        if part:
            return f"half published: {part} and not {expected}"
        if outcome.code == 0 and self.published(repo) != expected:
            return f"ended in 0, with {self.published(repo)}"
        # a signal may come while the folder is removed, and a broken disk removes nothing
        cleans = outcome.code not in (KILLED, ENDED) and not (fault and fault.mode == Mode.FAIL_ON)
        if cleans and list(self.temporary.iterdir()):
            return f"left {list(self.temporary.iterdir())}"
        again = self.run(words)
        if again.code != 0 or self.published(repo) != expected:
            return f"the rerun ended in {again.code}: {again.output[-600:]}"
        if list(self.temporary.iterdir()):
            return f"the rerun left {list(self.temporary.iterdir())}"
        if (repo in self.hub.private) != ("--private" in words):
            return f"{repo} is private, or is not, against the command"
        return self.secret(outcome.output, again.output)

    def secret(self, *texts: str) -> str:
        """Where the token is; empty for nowhere."""
        found = [text for text in (*texts, *self.hub.messages) if TOKEN in text]
        for folder in (self.temporary, self.home, self.outputs, self.hub.root):
            for path in folder.rglob("*"):
                if path.is_file() and TOKEN.encode() in path.read_bytes():
                    found.append(str(path))
        found += self.hub.in_processes
        return f"the token is in {found}" if found else ""


def comparable(root: Path) -> dict[str, str]:
    """The files of a repository, without its card, which names the repository."""
    return {name: digest for name, digest in hashes(root).items() if name != "README.md"}


@pytest.fixture(scope="module")
def place(
    servers: Callable[[bool], Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("push")
    hub = FaultyHub(folder / "hub")
    with running(hub, faulty(hub)):
        made = Place(folder, hub)
        yield made
        made.server.close()


DISK = {
    "kill": [Fault(Mode.KILL), Fault(Mode.KILL_HALF)],
    "sigterm": [Fault(Mode.TERM)],
    "disk error": [
        Fault(mode, error=error)
        for mode in (Mode.FAIL_ONCE, Mode.FAIL_ON)
        for error in (errno.ENOSPC, errno.EIO)
    ],
}


def commands_of_the_day(seed: int) -> list[str]:
    """One of the commands; all of them with `--all` or `--each`."""
    return list(COMMANDS) if EACH else few(list(COMMANDS), 1, seed)


@pytest.mark.parametrize("name", commands_of_the_day(seed=11))
@pytest.mark.parametrize("kind", DISK)
def test_a_fault_while_a_publication_is_staged(place: Place, kind: str, name: str) -> None:
    _, _, calls = place.expected(name)
    faults = [fault._replace(at=at) for fault in DISK[kind] for at in range(1, calls + 1)]
    chosen = few(faults, EACH or 1, seed=len(name + kind))
    wrong = {fault: problem for fault in chosen if (problem := place.strike(name, fault))}
    tally(kind, f"staging, {name}", len(chosen), len(wrong))
    assert wrong == {}


@pytest.mark.parametrize("name", commands_of_the_day(seed=12))
@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_at_any_request_publishes_nothing_or_all(place: Place, how: str, name: str) -> None:
    _, requests, _ = place.expected(name)
    chosen = few(range(1, requests + 1), EACH or 1, seed=len(how + name))
    wrong = {}
    for place.hub.fault_at in chosen:
        place.hub.how = how
        if problem := place.strike(name, None):
            wrong[place.hub.fault_at] = problem
    place.hub.fault_at = 0
    tally("request", f"{how}, {name}", len(chosen), len(wrong))
    assert wrong == {}


@pytest.mark.parametrize("name", commands_of_the_day(seed=13))
def test_two_publications_at_once_leave_one_whole(place: Place, name: str) -> None:
    expected, _, _ = place.expected(name)
    wrong = {}
    delays = [0.0, 0.05, 0.2, 0.5] if ALL else [0.1]
    for delay in delays:
        repo = place.fresh(name)
        words = place.words(name, repo)
        outcomes = place.server.together(place.temporary, [words] * 2, [0.0, delay])
        said = all(outcome.said() for outcome in outcomes)
        again = place.run(words)
        whole = place.published(repo) == expected
        if not (said and whole and again.code == 0):
            wrong[delay] = outcomes, again, place.published(repo)
    tally("twice at once", f"publishing, {name}", len(delays), len(wrong))
    assert wrong == {}
    assert place.secret() == ""


def test_two_outputs_at_once_leave_one_of_them(place: Place) -> None:
    repo = place.fresh()
    pair = [place.words("push", repo), place.words("push, GGUF", repo)]
    outcomes = place.server.together(place.temporary, pair, [0.0, 0.0])
    assert all(outcome.said() for outcome in outcomes)
    assert place.published(repo) in (place.expected("push")[0], place.expected("push, GGUF")[0])
    assert sorted(outcome.code for outcome in outcomes) == [0, 1]


# The negative controls


def test_half_a_publication_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = place.expected("push")
    half = {"": dict(list(expected[0][""].items())[:-1])}
    states = iter([{}])  # before the command the repository is empty
    monkeypatch.setattr(place, "published", lambda repo: next(states, half))
    assert "half published" in place.strike("push", None)


def test_a_token_in_a_file_or_text_is_found(place: Place) -> None:
    assert place.secret(f"Bearer {TOKEN}") != ""
    place.temporary.joinpath("log").write_text(f"Bearer {TOKEN}")
    try:
        assert place.secret() != ""
    finally:
        place.temporary.joinpath("log").unlink()
    assert place.secret() == ""


def test_the_words_of_a_process_are_read() -> None:
    assert processes_with(Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()) != []
    assert str(Path(f"/proc/{os.getpid()}/cmdline")) not in processes_with(TOKEN)
