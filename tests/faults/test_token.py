"""A token that must appear nowhere: in no output, no file, and no process that does not need it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ropeconv.engines.probe import Probe

from ..conftest import CONFIGS
from ..support.extent import sample, tally
from ..support.hub_server import running
from ..support.hub_writing import WritingHub, writing

TOKEN, KEY, PASSWORD = "hf_7hIsMustNotAppear", "sk-7hIsNeither", "7hIsWordNeither"
SECRETS = (TOKEN, KEY, PASSWORD)
WITH_TORCH = "from ropeconv.cli import main; main()"
PROGRAM = f"import sys; sys.modules['torch'] = None; {WITH_TORCH}"
LLAMA_2 = str(CONFIGS / "meta-llama--Llama-2-7b-hf.json")
BAKE = ("apply", "base/tiny", "--yarn", "16")
WORKS = {
    "inspect": ("inspect", "base/tiny", "--json"),
    "plan": (*BAKE, "--dry-run", "--explain"),
    "plan as JSON": (*BAKE, "--dry-run", "--json"),
    "apply": (*BAKE, "-o", "out"),
    "push": (*BAKE, "--encoding", "weights", "--push", "me/one"),
    "push with --token": (*BAKE, "--push", "me/two", "--token", TOKEN),
    "push with --token=": (*BAKE, "--push", "me/three", f"--token={TOKEN}", "--json"),
    "a message with it": (*BAKE, "--push", "me/four", "--commit-message", f"Baked with {TOKEN}"),
}
FAILS = {
    "inspect": ("inspect", "base/tiny"),
    "apply": (*BAKE, "-o", "never"),
    "push": (*BAKE, "--push", "me/never"),
    "gguf": ("inspect", "base/tiny/some.gguf"),
}
ANSWERS = (401, 403, 404, 412, 429, 500, 0)  # 0: what is no answer
CASES = [(what, status, debug) for what in FAILS for status in ANSWERS for debug in ("", "1")]


class Echo(WritingHub):
    """A Hub that answers with the token that it was sent. status: of its answers; None for a Hub that works."""

    status: int | None = None


def echoing(hub: Echo) -> type[BaseHTTPRequestHandler]:
    class Handler(writing(hub)):  # type: ignore[misc]
        def reply(self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
            if hub.status is not None:
                token = str(self.headers.get("Authorization"))
                words = json.dumps({"error": token, "message": token}) if hub.status else f"<html>{token}</html>"
                headers = {"X-Error-Message": token, "X-Request-Id": token}
                super().reply(hub.status or 200, words.encode(), body, headers)
            else:
                super().reply(status, content, body, headers)

    return Handler


@pytest.fixture
def hub(llama: Path, tmp_path: Path) -> Iterator[Echo]:
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    made = Echo(tmp_path / "hub")
    with running(made, echoing(made)):
        made.repos["base/tiny"] = llama
        made.gated.add("base/tiny")
        yield made


def said(
    folder: Path, hub: WritingHub, *arguments: str, program: str = PROGRAM, **more: str
) -> subprocess.CompletedProcess[str]:
    """The command line with secrets in its environment, and everything that it writes below `folder`.

    folder: where it runs. hub: that it knows. arguments: of the command line. program: that runs it. more: variables.
    """
    (folder / "temporary").mkdir(exist_ok=True)
    own = {"HF_TOKEN": TOKEN, "OPENAI_API_KEY": KEY, "TMPDIR": str(folder / "temporary"), "HOME": str(folder / "home")}
    environment = {**os.environ, **hub.environment(folder / "home"), **own, "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**environment, **more}, capture_output=True, text=True, check=False, timeout=120
    )


def found(folder: Path, *texts: str) -> list[str]:
    """Where a secret stands: names of files, and texts."""
    secrets = [secret.encode() for secret in SECRETS]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    names = [str(path) for path in files if any(secret in path.read_bytes() for secret in secrets)]
    return names + [text for text in (*texts, *map(str, files)) if any(secret in text for secret in SECRETS)]


def test_what_works_says_and_writes_it_nowhere(hub: Echo, tmp_path: Path) -> None:
    for name, arguments in sample(list(WORKS.items()), 5, seed=2):
        done = said(tmp_path, hub, *arguments)
        assert done.returncode == 0, (name, done.stderr)
        assert found(tmp_path, done.stdout, done.stderr, *hub.messages) == [], name
    tally("token", "commands that work", len(WORKS))


def test_what_fails_says_it_nowhere_though_the_hub_does(hub: Echo, tmp_path: Path) -> None:
    cases = sample(CASES, 6)
    for what, status, debug in cases:
        hub.status = status
        done = said(tmp_path, hub, *FAILS[what], ROPECONV_DEBUG=debug)
        assert done.returncode == 1, (what, status, done.stderr)
        assert found(tmp_path, done.stdout, done.stderr) == [], (what, status, debug)
        assert "unexpected" not in done.stderr
        assert bool(debug) == ("Traceback" in done.stderr)
    tally("token", "commands that fail", len(cases))


def test_the_search_finds_what_it_looks_for(hub: Echo, tmp_path: Path) -> None:
    (tmp_path / "leak").write_bytes(b"\0" + TOKEN.encode())
    assert found(tmp_path, f"Bearer {KEY}") == [str(tmp_path / "leak"), f"Bearer {KEY}"]
    assert "***" in said(tmp_path, hub, "inspect", f"./{TOKEN}").stderr


@contextmanager
def echo_server() -> Iterator[str]:
    """The URL of a server that refuses everybody with the key that it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            content = json.dumps({"error": {"message": f"no {self.headers.get('Authorization')}"}}).encode()
            self.send_response(500)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


def test_the_key_of_a_server_and_the_password_in_its_url(hub: Echo, tmp_path: Path) -> None:
    bake = ("apply", "model", "--yarn", "16", "-o", "out", "-q")
    assert said(tmp_path, hub, *bake, program=WITH_TORCH).returncode == 0
    with echo_server() as place:
        for url, debug in ((f"http://{place}", ""), (f"http://me:{PASSWORD}@{place}", "1")):
            given = ("validate", "out", "--against", "model", "--server", url)
            done = said(tmp_path, hub, *given, program=WITH_TORCH, ROPECONV_DEBUG=debug)
            assert (done.returncode, f"{place} refuses (500)" in done.stderr) == (1, True), done.stderr
            assert found(tmp_path, done.stdout, done.stderr) == []


def test_processes_that_need_no_secret_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "program.py" in (tmp_path / "arguments").read_text()
