"""TAB in real shells: `--install-completion`, then commands, options, names, files and folders are
completed.
"""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.cli.completion import COMPLETIONS

from ..support.optional import of_features

ROOT = Path(__file__).parents[2]
SHELLS = {"bash": ["bash", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish", "-i", "-P"]}
TO_START = "\x01"
"""Ctrl-A, which moves to the start of the line."""
SECONDS = 120
"""Time for a shell to answer on a busy machine."""


class Shell:
    """An interactive shell in a terminal of its own."""

    def __init__(self, name: str, home: Path) -> None:
        self.process, self.terminal = pty.fork()
        if not self.process:
            os.chdir(home / "work")
            os.execvpe(SHELLS[name][0], SHELLS[name], environment(home))
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.mark = 0
        self.say("")

    def say(self, line: str) -> str:
        """Type a line, and return what the terminal showed until it was done."""
        self.mark += 1
        os.write(self.terminal, f"{line}\r printf 'end-%s\\n' {self.mark}\r".encode())
        text = ""
        end = time.monotonic() + SECONDS
        while f"end-{self.mark}\r\n" not in text:
            ready, _, _ = select.select([self.terminal], [], [], end - time.monotonic())
            assert ready, text
            text += os.read(self.terminal, 1 << 16).decode(errors="replace")
        return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|\(B|[=>]|\][^\x07]*\x07)", "", text)

    def complete(self, line: str) -> str:
        """Type a line and TAB, and return its last word then."""
        shown = self.say(f"{line}\t{TO_START}printf '<%s>\\n' ")
        words = re.findall(r"^\r?<(\S*)>\r$", shown, re.MULTILINE)
        assert words, repr(shown)
        return str(words[-1])

    def close(self) -> None:
        """End the shell."""
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.terminal)


def environment(home: Path) -> dict[str, str]:
    """The environment of a new user, who has `ropeconv` on the PATH."""
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "VIRTUAL_ENV")}
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    return kept | {
        "HOME": str(home),
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture(
    scope="module", params=["bash", "zsh", pytest.param("fish", marks=pytest.mark.nightly)]
)
def shell(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    """A shell whose user has run `ropeconv --install-completion`, in a folder with a model and
    files.
    """
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}; apt-get install {request.param}")
    home = tmp_path_factory.mktemp(request.param)
    for folder in ("bin", "work", "work/model"):
        (home / folder).mkdir()
    for file in ("config-small.json", "book.txt", "vector.json"):
        (home / "work" / file).touch()
    program = home / "bin" / "ropeconv"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ropeconv "$@"\n')
    program.chmod(0o755)

    # in a script of two lines, since a shell that has one command replaces itself with it, and is
    # not found
    done = subprocess.run(
        [request.param, "-c", "ropeconv --install-completion\ntrue"],
        env=environment(home),
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"installed in {home}" in done.stdout.replace("\n", "")
    if (
        request.param == "zsh"
    ):  # which takes a TAB literally where more has been typed after it, as this test does
        with (home / ".zshrc").open("a") as file:
            file.write("zstyle ':completion:*' insert-tab false\n")
    opened = Shell(request.param, home)
    opened.complete(
        "ropeconv insp"
    )  # the first TAB makes zsh load the script, and completes nothing
    yield opened
    opened.close()


@of_features
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("ropeconv insp", "inspect"),
        ("ropeconv list fam", "families"),
        ("ropeconv apply model --original", "--original-context"),
        ("ropeconv inspect mod", "model"),
        ("ropeconv inspect config-s", "config-small.json"),
        ("ropeconv apply model --yarn 4 -o mod", "model"),
        ("ropeconv validate out --against mod", "model"),
        ("ropeconv eval model --text boo", "book.txt"),
        ("ropeconv apply model --inv-freq vec", "vector.json"),
        ("ropeconv tune model --journal boo", "book.txt"),
        ("ropeconv apply model --yarn 4 --runtime sgl", "sglang"),
        ("ropeconv inspect model --family smoll", "smollm3"),
        ("ropeconv apply model --to gguf --outtype q6", "q6_k"),
        ("ropeconv apply model --encoding minis", "ministral3"),
        ("ropeconv apply model --to saf", "safetensors"),
        ("ropeconv train-config model --for meg", "megatron"),
        ("ropeconv list methods ntk-f", "ntk-fixed"),
    ],
)
def test_tab_completes(shell: Shell, line: str, word: str) -> None:
    assert (
        shell.complete(line).removesuffix("/") == word
    )  # zsh takes the slash of a folder away at the end of a word


def test_tab_invents_nothing(shell: Shell) -> None:
    assert shell.complete("ropeconv apply model --runtime nowhe") == "nowhe"
    assert shell.complete("ropeconv inspect nowhe") == "nowhe"


@pytest.mark.parametrize("flag", COMPLETIONS)
def test_names_are_those_of_the_data_and_come_without_torch(flag: str) -> None:
    program = (
        "import sys\n"
        "from ropeconv.cli.completion import COMPLETIONS\n"
        f"names = COMPLETIONS[{flag!r}]()\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()\n"
        "print(*names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names = done.stdout.split()
    assert len(names) == len(set(names)) > 2
