"""One process that commands are forked from, and the bench of each case, made on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .bench import Bench
from .cases import CASES
from .harness import Server, reason_without


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if reason := reason_without():
        pytest.skip(reason)
    process = Server(tmp_path_factory.mktemp("server"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def bench(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    made: dict[str, Bench] = {}

    def get(name: str) -> Bench:
        if name not in made:
            made[name] = Bench(server, tmp_path_factory.mktemp("case"), CASES[name])
        return made[name]

    return get
