"""One process that commands are forked from, and the bench of each case, made on first use."""

import platform
import shutil
from collections.abc import Callable, Iterator

import pytest

from .bench import Bench
from .cases import CASES
from .harness import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if platform.libc_ver()[0] != "glibc" or not shutil.which("cc"):
        pytest.skip("the shim counts the calls of glibc, and a C compiler makes it")
    process = Server(tmp_path_factory.mktemp("server"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def bench(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    benches: dict[str, Bench] = {}

    def get(name: str) -> Bench:
        if name not in benches:
            benches[name] = Bench(server, tmp_path_factory.mktemp("case"), CASES[name])
        return benches[name]

    return get
