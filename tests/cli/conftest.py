"""A command that is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Run, hashes

Refuses = Callable[..., None]


@pytest.fixture
def refuses(run: Run, tmp_path: Path) -> Refuses:
    """Runs a command that ends with `code` and one sentence with `words`, and that prints and
    writes nothing.
    """

    def check(code: int, words: str, *arguments: object) -> None:
        before = hashes(tmp_path)
        entries = sorted(tmp_path.rglob("*"))
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("ropeconv: ")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert (hashes(tmp_path), sorted(tmp_path.rglob("*"))) == (before, entries)

    return check
