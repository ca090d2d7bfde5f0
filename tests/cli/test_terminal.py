"""What a terminal of 80 or 60 columns shows, what a pipe gets, and what reaches neither uninvited."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..conftest import CONFIGS, Run

LLAMA_2 = str(CONFIGS / "meta-llama--Llama-2-7b-hf.json")
QWEN = str(CONFIGS / "Qwen--Qwen3-8B.json")
COMMANDS = {
    "apply": ("apply", LLAMA_2, "--yarn", "16", "--dry-run"),
    "named": ("apply", LLAMA_2, "--mixed", "16", "--runtime", "vllm", "--dry-run"),
    "explain": ("apply", LLAMA_2, "--yarn", "16", "--dry-run", "--explain"),
    "inspect": ("inspect", QWEN),
    "advise": ("advise", LLAMA_2, "--context", "32k"),
    "advise --explain": ("advise", LLAMA_2, "--context", "32k", "--explain"),
    "methods": ("methods",),
    "methods yarn": ("methods", "yarn"),
    "runtimes": ("runtimes",),
    "archs": ("archs",),
    "bound": ("bound", "4k"),
    "schedule": ("schedule", "--yarn", "16"),
    "apply --help": ("apply", "--help"),
}


def in_terminal(folder: Path, width: int, *arguments: str) -> str:
    """What a terminal of that width is sent, without colours."""
    screen, end = pty.openpty()
    env = {**os.environ, "COLUMNS": str(width), "LINES": "50", "TERM": "xterm"}
    command = [sys.executable, "-m", "ropeconv", *arguments]
    process = subprocess.Popen(command, stdout=end, stderr=end, stdin=end, cwd=folder, env=env)
    os.close(end)
    found = b""
    while True:
        try:
            part = os.read(screen, 1 << 16)
        except OSError:
            break
        if not part:
            break
        found += part
    process.wait()
    os.close(screen)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode()).replace("\r\n", "\n")


def words(text: str) -> set[str]:
    """Words of letters of at least six characters: those that a narrow column would break first."""
    return set(re.findall(r"[A-Za-z_]{6,}", text))


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("name", list(COMMANDS))
def test_no_line_is_too_wide_and_no_word_is_broken(tmp_path: Path, name: str, width: int) -> None:
    text = in_terminal(tmp_path, width, *COMMANDS[name])
    assert text.strip()
    wide = [line for line in text.splitlines() if len(line) > width]
    assert [line for line in wide if not line.strip().startswith("ropeconv ")] == []  # commands are copied, not wrapped
    whole = in_terminal(tmp_path, 250, *COMMANDS[name])
    assert words(text) - words(whole) == set()


@pytest.mark.parametrize("width", [80, 60])
def test_a_validation_with_its_progress_bar(llama: Path, tmp_path: Path, run: Run, width: int) -> None:
    assert run("apply", "model", "--yarn", "4", "-o", "out", "-q").returncode == 0
    text = in_terminal(tmp_path, width, "validate", "out", "--against", "model", "--tokens", "32")
    assert "Agrees everywhere" in text
    rows = [line for line in text.splitlines() if line.rstrip().endswith("agrees")]
    assert [row.split()[0] for row in rows] == ["0-63", "64-127", "128-255"]
    assert max(len(row.rstrip()) for row in rows) <= width


def test_writing_with_its_progress_bar(llama: Path, tmp_path: Path) -> None:
    text = in_terminal(tmp_path, 80, "apply", "model", "--yarn", "4", "-o", "out")
    assert "Wrote out" in text
    assert "Error" not in text


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


@pytest.mark.parametrize("name", ["llama.cpp", "llama-cpp", "gguf"])
def test_llama_cpp_goes_by_any_of_its_names(run: Run, name: str) -> None:
    done = run("apply", LLAMA_2, "--mixed", "16", "--runtime", name, "--dry-run")
    assert done.returncode == 1
    assert "--to gguf" in done.stderr


def test_quiet_prints_the_path_alone(run: Run, llama: Path) -> None:
    done = run("apply", "model", "--yarn", "4", "-o", "out", "-q")
    assert (done.stdout, done.stderr) == ("out\n", "")


def test_numbers_that_matter_are_whole(run: Run) -> None:
    assert "theta 283461213" in run("schedule", "--theta", "283461213", "--yarn", "2").stdout
    done = run("apply", LLAMA_2, "--theta", "283461213", "--context", "1M", "--dry-run")
    assert "283461213" in done.stdout
    assert "e+08" not in done.stdout


def test_no_library_speaks_uninvited(run: Run, tmp_path: Path) -> None:
    """numpy warns of an overflow here, unless it is told not to."""
    code = "import numpy as np, warnings; np.float64(1e308) * 10; warnings.warn('a library')"
    patched = f"import ropeconv.cli as c; c._silence_libraries(); {code}"
    done = subprocess.run([sys.executable, "-c", patched], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    loud = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "a library" in loud.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", LLAMA_2), ("advise", LLAMA_2, "--context", "8k"), ("bound", "4k"), ("schedule", "--yarn", "2"),
        ("schedule", "--theta", "1e6", "--steps", "8k"), ("methods",), ("families",), ("archs",), ("runtimes",),
        ("apply", LLAMA_2, "--yarn", "2", "--dry-run"), ("bound", LLAMA_2, "--yarn", "2"),
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


def wait_for_library(process: subprocess.Popen[str], name: str) -> None:
    """Waits until a process has loaded a library, or has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if name in Path(f"/proc/{process.pid}/maps").read_text():
                return
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("library", "delay"), [("_multiarray_umath", 0.0), ("libtorch_cpu", 0.0), ("libtorch_cpu", 1.5)]
)
def test_ctrl_c_always_says_something(run: Run, llama: Path, tmp_path: Path, library: str, delay: float) -> None:
    assert run("apply", "model", "--yarn", "4", "-o", "out", "-q").returncode == 0
    command = [sys.executable, "-m", "ropeconv", "validate", "out", "--against", "model"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_library(process, library)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=120)
    if process.returncode == 0:  # it was done before the signal came
        assert "Agrees" in output
        return
    assert process.returncode == 130, said
    assert "interrupted" in said


@pytest.mark.parametrize("given", [("--plot", "x.txt"), ("--plot", "no/x.png"), ("--report", "no/x.html")])
def test_places_of_evidence_are_checked_first(run: Run, llama: Path, given: tuple[str, str]) -> None:
    done = run("validate", "nothing", "--against", "model", *given)
    assert done.returncode == 2, done.stderr


@pytest.mark.parametrize("name", list(COMMANDS))
def test_no_line_ends_with_blanks(run: Run, tmp_path: Path, name: str) -> None:
    """Neither in a terminal nor in a pipe."""
    for text in (in_terminal(tmp_path, 80, *COMMANDS[name]), run(*COMMANDS[name]).stdout):
        assert text.strip()
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_without_a_command_there_is_the_help_and_nothing_else(run: Run) -> None:
    done = run()
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.strip() == run("--help").stdout.strip() != ""
