"""One process that commands are forked from, and the bench of each case, made on first use."""

import platform
import shutil
from collections.abc import Callable, Iterator

import pytest

from ropeconv.cli.app import all_commands

from ..support.optional import REMOVED, skip_feature
from .bench import Bench
from .cases import CASES, Case
from .harness import Server


def uses_removed(case: Case) -> bool:
    """Whether a command of a case belongs to a feature that `scripts/core_tests` left out."""
    for action, *words in (case.command, *case.before):
        if action in REMOVED:  # actions of the server that call into a feature: run, ui
            return True
        if action in ("ropeconv", "models") and words[0] not in all_commands():
            return True
    return False


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Server]]:
    """The process for commands that run a model, and the one for the others, made on first use."""
    if platform.libc_ver()[0] != "glibc" or not shutil.which("cc"):
        pytest.skip("the shim counts the calls of glibc, and a C compiler makes it")
    made: dict[bool, Server] = {}

    def get(torch: bool) -> Server:
        if torch not in made:
            if torch:
                pytest.importorskip("torch")
            made[torch] = Server(tmp_path_factory.mktemp("server"), torch)
        return made[torch]

    yield get
    for server in made.values():
        server.close()


@pytest.fixture(scope="session")
def server(servers: Callable[[bool], Server]) -> Server:
    return servers(False)


@pytest.fixture(scope="session")
def bench(
    servers: Callable[[bool], Server], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Bench]:
    benches: dict[str, Bench] = {}

    def get(name: str) -> Bench:
        case = CASES[name]
        if uses_removed(case):
            skip_feature()
        if name not in benches:
            benches[name] = Bench(servers(case.torch), tmp_path_factory.mktemp("case"), case)
        return benches[name]

    return get
