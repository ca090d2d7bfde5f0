"""What a terminal of 80 or 60 columns shows, what a pipe gets, and what reaches neither uninvited."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from ropeconv.cli import errors
from ropeconv.cli.app import app

from ..conftest import CONFIGS, Run
from ..support.extent import sample

LLAMA_2 = str(CONFIGS / "meta-llama--Llama-2-7b-hf.json")
QWEN = str(CONFIGS / "Qwen--Qwen3-8B.json")
COMMANDS = {
    "apply": ("apply", LLAMA_2, "--yarn", "16", "--dry-run"),
    "named": ("apply", LLAMA_2, "--mixed", "16", "--runtime", "vllm", "--dry-run"),
    "explain": ("apply", LLAMA_2, "--yarn", "16", "--dry-run", "--explain"),
    "inspect": ("inspect", QWEN),
    "advise --explain": ("advise", LLAMA_2, "--context", "32k", "--explain"),
    "methods": ("methods",),
    "methods yarn": ("methods", "yarn"),
    "runtimes": ("runtimes",),
    "archs": ("archs",),
    "bound": ("bound", "4k"),
    "schedule": ("schedule", "--yarn", "16"),
    "apply --help": ("apply", "--help"),
}
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_screen(width: int, *arguments: str) -> str:
    """What a terminal of that width is sent, without colours."""
    screen = Screen()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        for name, value in (("COLUMNS", str(width)), ("LINES", "50"), ("TERM", "xterm")):
            patch.setenv(name, value)
        errors.run(lambda **how: app(arguments, prog_name="ropeconv", **how))
    return COLOURS.sub("", screen.getvalue())


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
    return COLOURS.sub("", found.decode()).replace("\r\n", "\n")


def words(text: str) -> set[str]:
    """Words of letters of at least six characters: those that a narrow column would break first."""
    return set(re.findall(r"[A-Za-z_]{6,}", text))


@pytest.mark.parametrize("name", ["apply --help", *sample(list(COMMANDS)[:-1], 5)])
def test_no_line_is_too_wide_or_ends_with_blanks_and_no_word_is_broken(run: Run, name: str, tmp_path: Path) -> None:
    show = partial(in_terminal, tmp_path) if "--help" in name else on_screen  # typer measures the terminal once
    whole = show(250, *COMMANDS[name])
    for width in (80, 60):
        text = show(width, *COMMANDS[name])
        wide = [line for line in text.splitlines() if len(line) > width]
        assert [line for line in wide if not line.strip().startswith("ropeconv ")] == [], "commands are copied"
        assert words(text) - words(whole) == set()
    for text in (whole, run(*COMMANDS[name]).stdout):
        assert text.strip()
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_a_process_in_a_terminal_prints_the_same(tmp_path: Path) -> None:
    assert in_terminal(tmp_path, 60, *COMMANDS["apply"]) == on_screen(60, *COMMANDS["apply"])


@pytest.mark.parametrize("width", [60, pytest.param(80, marks=pytest.mark.nightly)])
def test_a_validation_with_its_progress_bar(llama: Path, tmp_path: Path, width: int) -> None:
    pytest.importorskip("torch")
    written = in_terminal(tmp_path, width, "apply", "model", "--yarn", "4", "-o", "out")
    assert "Wrote out" in written
    assert "Error" not in written
    text = in_terminal(tmp_path, width, "validate", "out", "--against", "model", "--tokens", "32")
    assert "Agrees everywhere" in text
    rows = [line for line in text.splitlines() if line.rstrip().endswith("agrees")]
    assert [row.split()[0] for row in rows] == ["0-63", "64-127", "128-255"]
    assert max(len(row.rstrip()) for row in rows) <= width


def test_a_pipe_gets_everything(run: Run) -> None:
    text = run("apply", LLAMA_2, "--yarn", "16", "--dry-run").stdout
    line = next(line for line in text.splitlines() if line.startswith("exact"))
    assert "transformers 4.51-5.8 and 5.10-5.23" in line
    assert "vLLM 0.11 and 0.20-0.24" in line
    assert "…" not in text
    assert run("runtimes").stdout.count("modeling_rope_utils.py") >= 1


def test_runtimes_that_are_named_stand_first_with_a_line_each(run: Run) -> None:
    text = run("apply", LLAMA_2, "--mixed", "16", "--runtime", "vllm@0.33", "--runtime", "mlx-lm", "--dry-run").stdout
    table = text.split("Runtime support")[1].split("Files")[0]
    rows = [line.split()[:3] for line in table.splitlines()[2:] if line.strip()]
    assert rows[:2] == [["exact", "mlx-lm", "0.32"], ["exact", "vLLM", "0.33"]]
    assert "transformers 4.45-5.8 and 5.10-5.23" in table


def test_no_library_speaks_uninvited() -> None:
    """numpy warns of an overflow here, unless it is told not to."""
    code = "import numpy as np, warnings; np.float64(1e308) * 10; warnings.warn('a library')"
    patched = f"import ropeconv.cli as c; c._silence_libraries(); {code}"
    said = [
        subprocess.run([sys.executable, "-c", one], capture_output=True, text=True).stderr for one in (patched, code)
    ]
    assert said[0] == ""
    assert "a library" in said[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", LLAMA_2), ("advise", LLAMA_2, "--context", "8k"), ("bound", "4k"), ("schedule", "--yarn", "2"),
        ("schedule", "--theta", "1e6", "--steps", "8k"), ("methods",), ("families",), ("archs",), ("runtimes",),
        ("apply", LLAMA_2, "--yarn", "2", "--dry-run"),
    ],
)  # fmt: skip
def test_every_document_has_its_schema(run: Run, arguments: tuple[str, ...]) -> None:
    assert json.loads(run(*arguments, "--json").stdout)["schema"] == 2


def test_an_interrupted_apply_says_how_to_go_on(llama: Path, tmp_path: Path) -> None:
    code = (
        "import signal, threading, time, ropeconv.bake.writing.files as e, ropeconv.cli as c\n"
        "copy, main = e.copy_file, threading.main_thread().ident\n"
        "e.copy_file = lambda *given: (signal.pthread_kill(main, signal.SIGINT), time.sleep(1), copy(*given))\n"
        "c.main()\n"
    )
    command = [sys.executable, "-c", code, "apply", "model", "--yarn", "4", "-o", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "out is not there yet" in done.stderr
    assert "the same command goes on from them" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("library", "delay"),
    [
        ("_multiarray_umath", 0.0),
        pytest.param("libtorch_cpu", 0.0, marks=pytest.mark.nightly),
        pytest.param("libtorch_cpu", 1.5, marks=pytest.mark.nightly),
    ],
)
def test_ctrl_c_always_says_something(run: Run, llama: Path, tmp_path: Path, library: str, delay: float) -> None:
    assert run("apply", "model", "--yarn", "4", "-o", "out", "-q").returncode == 0
    command = [sys.executable, "-m", "ropeconv", "validate", "out", "--against", "model"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    with contextlib.suppress(OSError):  # it has ended
        while library not in Path(f"/proc/{process.pid}/maps").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=120)
    if process.returncode == 0:  # it was done before the signal came
        assert "Agrees" in output
        return
    assert process.returncode == 130, said
    assert "interrupted" in said
