"""The command line in this process: exit code and streams as of `ropeconv`, without the second that
a process takes.
"""

import io
import re
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from ropeconv.cli import process as errors
from ropeconv.cli.app import complete_app

from .optional import skip_where_advised


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def plain(text: str) -> str:
    """What a terminal shows, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


class Done(NamedTuple):
    """A command that ended. The names are those of subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def command(folder: Path, *words: object, code: int | None = None) -> Done:
    """Runs a command in a folder. code: that it has to end with, None for any."""
    out = io.StringIO()
    err = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        chdir(folder),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        patch.setattr("sys.argv", ["ropeconv", *map(str, words)])
        done = errors.run(
            lambda **options: complete_app()([str(word) for word in words], **options)
        )
    if done:
        skip_where_advised(err.getvalue())
    assert code in (None, done), (words, done, out.getvalue() + err.getvalue())
    return Done(done, out.getvalue(), err.getvalue())
