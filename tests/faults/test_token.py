"""A token that must appear nowhere: in no output, no file, and no process that does not need it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ropeconv.engines.probe import Probe

from ..support.extent import few, tally
from ..support.hub_server import Hub, handler, running
from ..support.hub_writing import WritingHub, writing
from ..support.optional import of_features

TOKEN, KEY, PASSWORD = SECRETS = "hf_7hIsMustNotAppear", "sk-7hIsNeither", "7hIsWordNeither"
WITH_TORCH = "from ropeconv.cli import main; main()"
PROGRAM = f"import sys; sys.modules['torch'] = None; {WITH_TORCH}"
BAKE = ("apply", "base/tiny", "--yarn", "16")
WORKS = (
    ("inspect", "base/tiny", "--json"),
    (*BAKE, "--dry-run", "--explain"),
    (*BAKE, "--push", "me/two"),
    ("push", "out", "me/three", f"--token={TOKEN}", "--json"),
    ("push", "out", "me/four", "--token", TOKEN, "--commit-message", f"Baked with {TOKEN}"),
)
FAILS = (("inspect", "base/tiny"), (*BAKE, "-o", "never"), (*BAKE, "--push", "me/never"))
ANSWERS = (401, 403, 404, 412, 429, 500, 0)  # 0: what is no answer
CASES = [(command, status, debug) for command in FAILS for status in ANSWERS for debug in ("", "1")]


class Echo(WritingHub):
    """A Hub that answers with the token that it was sent. status: of its answers; None for a Hub
    that works.
    """

    status: int | None = None


def echoing(hub: Echo) -> type[BaseHTTPRequestHandler]:
    class Handler(writing(hub)):  # type: ignore[misc]
        def reply(
            self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None
        ) -> None:
            if hub.status is not None:
                token = str(self.headers.get("Authorization"))
                content = (
                    f'{{"error": "{token}"}}' if hub.status else f"<html>{token}</html>"
                ).encode()
                status = hub.status or 200
                headers = {
                    "X-Error-Message": token,
                    "X-Request-Id": token,
                }
            super().reply(status, content, body, headers)

    return Handler


@pytest.fixture
def hub(llama: Path, tmp_path: Path) -> Iterator[Echo]:
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    echo = Echo(tmp_path / "hub")
    with running(echo, echoing(echo)):
        echo.repos["base/tiny"] = llama
        echo.gated.add("base/tiny")
        yield echo


def said(
    folder: Path, hub: WritingHub, *arguments: str, program: str = PROGRAM, debug: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command line with secrets in its environment, and everything that it writes below
    `folder`.
    """
    (folder / "temporary").mkdir(exist_ok=True)
    places = {"TMPDIR": "temporary", "HOME": "home", "XDG_CACHE_HOME": "cache"}
    variables = {"HF_TOKEN": TOKEN, "OPENAI_API_KEY": KEY, "ROPECONV_DEBUG": debug}
    variables |= {name: str(folder / place) for name, place in places.items()}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **hub.environment(folder / "home"), **variables},
        timeout=120,
    )


def found(folder: Path, *texts: str) -> list[str]:
    """Where a secret stands: names of files, and texts."""
    secrets = [secret.encode() for secret in SECRETS]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    names = [str(path) for path in files if any(secret in path.read_bytes() for secret in secrets)]
    return names + [
        text for text in (*texts, *map(str, files)) if any(secret in text for secret in SECRETS)
    ]


def test_what_works_says_and_writes_it_nowhere(hub: Echo, tmp_path: Path) -> None:
    commands = ((*BAKE, "-o", "out"), *few(WORKS, 2, seed=2))
    for command in commands:
        done = said(tmp_path, hub, *command)
        assert done.returncode == 0, (command, done.stderr)
        assert found(tmp_path, done.stdout, done.stderr, *hub.messages) == [], command
    tally("token", "commands that work", len(commands))


def test_what_fails_says_it_nowhere_though_the_hub_does(hub: Echo, tmp_path: Path) -> None:
    cases = few(CASES, 2)
    for command, hub.status, debug in cases:
        done = said(tmp_path, hub, *command, debug=debug)
        assert done.returncode == 1, (command, hub.status, done.stderr)
        assert found(tmp_path, done.stdout, done.stderr) == [], (command, hub.status, debug)
        assert "unexpected" not in done.stderr
        assert bool(debug) == ("Traceback" in done.stderr)
    tally("token", "commands that fail", len(cases))


@pytest.fixture
def echo_server() -> Iterator[str]:
    """The place of a server that refuses everybody with the key that it was sent."""

    class Handler(handler(Hub())):  # type: ignore[misc]
        def do_GET(self) -> None:
            content = {"error": {"message": f"no {self.headers.get('Authorization')}"}}
            self.reply(500, json.dumps(content).encode(), True)

    with running(Hub(), Handler) as running_hub:
        yield running_hub.url.removeprefix("http://")


@of_features
@pytest.mark.parametrize(("user", "debug"), few([("", ""), (f"me:{PASSWORD}@", "1")], 1))
def test_the_key_of_a_server_and_the_password_in_its_url(
    user: str, debug: str, hub: Echo, echo_server: str, tmp_path: Path
) -> None:
    assert said(tmp_path, hub, "apply", "model", "--yarn", "16", "-o", "out", "-q").returncode == 0
    given = ("validate", "out", "--against", "model", "--server", f"http://{user}{echo_server}")
    done = said(tmp_path, hub, *given, program=WITH_TORCH, debug=debug)
    assert (done.returncode, f"{echo_server} refuses (500)" in done.stderr) == (
        1,
        True,
    ), done.stderr
    assert found(tmp_path, done.stdout, done.stderr) == []


def test_processes_that_need_no_secret_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, TOKEN)
    monkeypatch.setenv("KEPT", "stays")
    spy = tmp_path / "python"
    spy.write_text(f'#!/bin/sh\nenv > {tmp_path}/environment\necho "$@" > {tmp_path}/arguments\n')
    spy.chmod(0o755)
    with Probe(python=str(spy)) as probe:
        probe.process.wait(timeout=20)
    assert "KEPT=stays" in (tmp_path / "environment").read_text()
    assert found(tmp_path) == []


def test_what_a_library_logs_has_no_token() -> None:
    """huggingface_hub logs an answer that is not HTTP, which a Hub may have filled with the token."""
    program = (
        "import logging, os; from ropeconv.cli.process import prepare; prepare();"
        "logging.warning('illegal status line: %s', os.environ['HF_TOKEN'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("illegal status line: ***" in done.stderr, TOKEN in done.stderr) == (True, False)
