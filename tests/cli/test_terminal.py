"""What a terminal shows, what a pipe gets, what reaches neither uninvited, and the progress bar."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from ropeconv.cli import process as errors
from ropeconv.cli.app import app
from ropeconv.cli.screen import bar

from ..conftest import CONFIGS, Run
from ..support.extent import sample
from ..support.in_process import Terminal, plain
from ..support.waiting import Clock

LLAMA_2 = str(CONFIGS / "meta-llama--Llama-2-7b-hf.json")
QWEN = str(CONFIGS / "Qwen--Qwen3-8B.json")
COMMANDS = {
    "apply": ("apply", LLAMA_2, "--yarn", "16", "--dry-run"),
    "named": ("apply", LLAMA_2, "--mixed", "16", "--runtime", "vllm", "--dry-run"),
    "explain": ("apply", LLAMA_2, "--yarn", "16", "--dry-run", "--explain"),
    "inspect": ("inspect", QWEN),
    "advise --explain": ("advise", LLAMA_2, "--context", "32k", "--explain"),
    "methods": ("list", "methods"),
    "methods yarn": ("list", "methods", "yarn"),
    "runtimes": ("list", "runtimes"),
    "archs": ("list", "archs"),
    "bound": ("bound", "4k"),
    "frequencies": ("plot", "--yarn", "16"),
    "apply --help": ("apply", "--help"),
}
COPIED = ("ropeconv ", "Next: ", "Bake: ", "Train: ", "Untuned: ", "Measure: ")
"""Beginnings of lines with a command, which are never wrapped."""
SHORT = {
    "apply": ("--yarn", "4", "--replace", "--dry-run"),
    "inspect": (),
    "compare": (QWEN,),
}


def on_screen(width: int, *arguments: str) -> str:
    """What a terminal of that width is sent, without colours."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        for name, value in (("COLUMNS", str(width)), ("LINES", "50"), ("TERM", "xterm")):
            patch.setenv(name, value)
        errors.run(lambda **how: app(arguments, prog_name="ropeconv", **how))
    return plain(screen.getvalue())


def in_terminal(folder: Path, width: int, *arguments: str) -> str:
    """The same of a process with a terminal of the system."""
    screen, end = pty.openpty()
    env = {**os.environ, "COLUMNS": str(width), "LINES": "50", "TERM": "xterm"}
    command = [sys.executable, "-m", "ropeconv", *arguments]
    process = subprocess.Popen(command, stdout=end, stderr=end, stdin=end, cwd=folder, env=env)
    os.close(end)
    found = b""
    with contextlib.suppress(OSError):
        while part := os.read(screen, 1 << 16):
            found += part
    process.wait()
    os.close(screen)
    return plain(found.decode()).replace("\r\n", "\n")


def words(text: str) -> set[str]:
    """Words of letters of at least six characters: those that a narrow column would break first."""
    return set(re.findall(r"[A-Za-z_]{6,}", text))


@pytest.mark.parametrize("name", ["apply --help", *sample(list(COMMANDS)[:-1], 5)])
def test_no_line_is_too_wide_or_ends_with_blanks_and_no_word_is_broken(run: Run, name: str, tmp_path: Path) -> None:
    show = (
        partial(in_terminal, tmp_path) if "--help" in name else on_screen
    )  # click measures the terminal, not the stream
    whole = show(250, *COMMANDS[name])
    for width in (80, 60):
        text = show(width, *COMMANDS[name])
        wide = [line for line in text.splitlines() if len(line) > width]
        assert [line for line in wide if not line.strip().startswith(COPIED)] == []
        assert words(text) - words(whole) == set()
    for text in (whole, run(*COMMANDS[name]).stdout):
        assert text.strip()
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("command", list(SHORT))
@pytest.mark.parametrize("config", sample(sorted(path.name for path in CONFIGS.glob("*.json")), 4))
def test_a_screen_has_at_most_15_lines_at_80_columns(command: str, config: str) -> None:
    text = on_screen(80, command, str(CONFIGS / config), *SHORT[command])
    answer = re.split(r"^(?:Note:|!) ", text, maxsplit=1, flags=re.MULTILINE)[0]  # warnings and problems come last
    assert len([line for line in answer.splitlines() if line]) <= 15, text


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", LLAMA_2), ("advise", LLAMA_2, "--context", "8k"), ("bound", "4k"), ("plot", "--yarn", "2"),
        ("list", "methods"), ("list", "families"), ("list", "archs"), ("list", "runtimes"),
        ("apply", LLAMA_2, "--yarn", "2", "--dry-run"),
    ],
)  # fmt: skip
def test_every_document_has_its_schema(run: Run, arguments: tuple[str, ...]) -> None:
    assert json.loads(run(*arguments, "--json").stdout)["schema"] == 2


def shown(clock: Clock, steps: list[tuple[float, int]]) -> str:
    """The last line of a bar after some steps: seconds that pass, and what is done then."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    with bar("Running", "tokens", console, clock) as (set_total, advance):
        clock.now += 30  # a model is loaded, which does not count
        set_total(1000)
        for seconds, done in steps:
            clock.now += seconds
            advance(done)
        screen.truncate(0)
    return screen.getvalue()


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([(2, 100)], ("10%", "50 tokens/s", "0:00:18 left")),
        ([(1, 10), (1, 90)], ("10%", "50 tokens/s", "0:00:18 left")),
        ([(60, 1)], ("0%", "0.0 tokens/s", "16:39:00 left")),
        ([(2, 500), (2, 500)], ("100%", "250 tokens/s", "0:00:00 left")),
    ],
)
def test_percentage_rate_and_time_from_the_first_step_on(steps: list[tuple[float, int]], said: tuple[str, ...]) -> None:
    text = shown(Clock(), steps)
    assert [words for words in said if words not in text] == []
