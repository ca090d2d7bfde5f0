"""The process of the command line: what it imports, closed and broken streams, signals, and
unexpected errors.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest

from ropeconv.cli.process import run as run_app
from ropeconv.engines.probe import Probe

from ..conftest import CONFIGS, Run

LLAMA_2 = str(CONFIGS / "meta-llama--Llama-2-7b-hf.json")
ROPECONV = shlex.join([sys.executable, "-m", "ropeconv"])


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, with the exit code of the first failing command of a pipe."""
    command = ["bash", "-o", "pipefail", "-c", line]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    for command in ("list families --json", "list methods nothing 2>&1", "apply --help"):
        done = shell(f"{ROPECONV} {command} | true", tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


def test_windows_is_refused_in_one_sentence(tmp_path: Path) -> None:
    program = "import os, ropeconv.cli; os.name = 'nt'; ropeconv.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "ropeconv: Windows is not supported; run ropeconv in WSL (`wsl --install`), or on Linux"
        " or macOS\n"
    )


def test_a_full_disk_behind_the_output_is_said(tmp_path: Path) -> None:
    done = shell(f"{ROPECONV} list methods > /dev/full", tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(r"ropeconv: No space .* free space\n", done.stderr)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_end_a_run_with_a_sentence(stop: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ropeconv", "inspect", "me/tiny"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "HF_HUB_OFFLINE": "0"}
        environment = {**os.environ, **hub, "HF_HOME": str(tmp_path)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, cwd=tmp_path, env=environment, **pipes)  # type: ignore[call-overload]
        connection, _ = silent.accept()
        while b"me/tiny" not in connection.recv(
            4096
        ):  # others may look for a server that had this port
            connection, _ = silent.accept()
        # Python notices a signal before a system call or in it, but not in the microseconds between:
        # so it is sent when the process waits for the answer.
        time.sleep(0.5)
        process.send_signal(stop)
        _, words = process.communicate(timeout=60)
    assert process.returncode == 128 + stop, words
    assert words.startswith("ropeconv: interrupted; ")
    assert "Traceback" not in words


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    folder = tmp_path / "größe"
    folder.mkdir()
    (folder / "config.json").write_bytes(Path(LLAMA_2).read_bytes())
    for options in ("", "--json"):
        ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        done = shell(f"{ROPECONV} inspect größe {options}", tmp_path, **ascii_only)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
    assert json.loads(done.stdout)["source"]["reference"] == "größe"


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (MemoryError(), "there is not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (UnicodeEncodeError("ascii", "é", 0, 1, "no"), "set PYTHONUTF8=1"),
        (ZeroDivisionError("\x1b]0;owned"), "unexpected ZeroDivisionError: \\x1b]0;owned"),
    ],
)
def test_errors_of_python_are_sentences_and_tracebacks_where_they_are_asked_for(
    problem: Exception,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def app(**options: object) -> None:
        raise problem

    for debug in ("", "1"):
        monkeypatch.setenv("ROPECONV_DEBUG", debug)
        assert run_app(app) == 1
        output = capsys.readouterr().err
        assert ("Traceback" in output) == bool(debug)
        assert debug or words in output
        assert "\x1b" not in output


HEAVY = {"torch", "transformers", "huggingface_hub", "safetensors", "sentencepiece", "tokenizers"}
RUNNING = {"ropeconv.engines", "ropeconv.validate", "ropeconv.features.evaluation"}
"""Packages that run models."""
COMPUTING = {"numpy", "ropeconv.models"}
"""Packages that the list of commands needs none of."""
WATCH = """
import sys
from ropeconv.cli.app import complete_app
from ropeconv.cli.process import run
sys.argv = ["ropeconv", *sys.argv[1:]]
code = run(complete_app())
names = {part for name in sys.modules for part in (name.split(".")[0], ".".join(name.split(".")[:2]))}
print("LOADED", *sorted(names), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("list", "archs"),
        ("inspect", "model"),
        ("apply", "model", "--mixed", "4", "--dry-run", "--json"),
        *(
            pytest.param(("list", name), marks=pytest.mark.nightly)
            for name in ("methods", "families", "runtimes")
        ),
    ],
)
def test_no_heavy_module_is_imported(
    llama: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    command = [sys.executable, "-c", WATCH, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split()[1:])
    assert loaded
    assert not loaded & HEAVY
    if arguments == ("--help",):
        assert not loaded & COMPUTING
    if arguments[0] == "inspect":
        assert loaded >= COMPUTING
        assert not loaded & RUNNING


# Nothing that numpy or Python warns about reaches a user: every warning is an error here


SCOUT = "meta-llama--Llama-4-Scout-17B-16E-Instruct.first"
SECOND = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}


@pytest.mark.parametrize(
    "command",
    [
        ("inspect",),
        ("bound", "--up-to", "1M"),
        ("apply", "--as-is", "--dry-run"),
        pytest.param(("advise", "--context", "20M"), marks=pytest.mark.nightly),
        pytest.param(("plot", "-o", "picture.svg"), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("revision", ["first", "second"])
def test_both_revisions_of_llama_4_scout(
    run: Run, tmp_path: Path, revision: str, command: tuple[str, ...]
) -> None:
    config = json.loads((CONFIGS / f"{SCOUT}.json").read_text())
    if revision == "second":
        config["text_config"]["rope_scaling"].update(SECOND)
    (tmp_path / "scout.json").write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = run(command[0], "scout.json", *command[1:])
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Probe.available(), reason="needs transformers")
def test_only_a_checked_output_starts_a_process_that_imports_transformers(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class NotedProbe(nullcontext[None]):
        """Notes that it was started, and leaves the questions to the probe of the tests."""

        available = staticmethod(Probe.available)

        def __enter__(self) -> None:
            started.append("probe")

    monkeypatch.setattr("ropeconv.engines.probe.Probe", NotedProbe)
    apply = ("apply", "model", "--yarn", "4", "-q")
    assert run(*apply, "--no-check", "-o", "unchecked").returncode == 0
    assert not started
    assert run(*apply, "-o", "checked").returncode == 0
    assert len(started) == 1
