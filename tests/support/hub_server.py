"""A Hub on localhost, enough of it for reading: repository info, resolve by HEAD and GET with
ranges, errors.

It is driven through the real huggingface_hub client only. `sent` counts the bytes of file contents
that left it.
"""

import hashlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pytest

LARGE = (".safetensors", ".bin", ".gguf", ".pth", ".model")


class Hub:
    """Repositories by id: a folder each, one commit; branches are `id@branch`. gated: ids that need
    a token.

    requests: how many came. kill_at: at which of them the process `victim` is killed, 0 for none,
    and kill_late: after the request had its effect, before it is answered. open: whole files of
    weights are sent while it is set.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.sent: dict[str, int] = {}
        self.dropped = 0
        self.branches: list[str] = []
        self.url = ""
        self.requests = self.kill_at = self.victim = 0
        self.kill_late = False
        self.counting = threading.Lock()
        self.open = threading.Event()
        self.open.set()

    def kills(self) -> bool:
        """Counts a request, and says whether it is the one to kill at."""
        with self.counting:
            self.requests += 1
            return self.requests == self.kill_at

    def kill(self) -> None:
        os.kill(self.victim, signal.SIGKILL)

    def commit(self, repo: str) -> str:
        return hashlib.sha1(repo.encode()).hexdigest()

    def at(self, repo: str, revision: str) -> str:
        """The key of a branch, or of its repository where that has one commit."""
        return f"{repo}@{revision}" if f"{repo}@{revision}" in self.repos else repo

    def listing(self, repo: str) -> list[dict[str, Any]]:
        """The files of a repository, as the Hub lists them."""
        root = self.repos[repo]
        return [self.row(root, path) for path in sorted(root.rglob("*")) if path.is_file()]

    def row(self, root: Path, path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        name = path.relative_to(root).as_posix()
        entry = {
            "type": "file",
            "path": name,
            "size": len(content),
            "oid": hashlib.sha1(content).hexdigest(),
        }
        if name.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {
                "oid": digest,
                "sha256": digest,
                "size": len(content),
                "pointerSize": 130,
            }
        return entry

    def environment(self, home: Path) -> dict[str, str]:
        """Variables for a client that knows only this Hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }


H = TypeVar("H", bound=Hub)


def talk_to(hub: Hub, cache: Path, monkeypatch: "pytest.MonkeyPatch") -> None:
    """Makes a Hub the one that the huggingface_hub of this process talks to. cache: for what it
    fetches.

    It tries again at once where it would wait: 23 seconds for each request that the Hub never
    answers.
    """
    from huggingface_hub import constants, hf_api, utils

    for module in (constants, hf_api):
        monkeypatch.setattr(module, "ENDPOINT", hub.url, raising=False)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache.parent / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    monkeypatch.setattr(utils._http, "time", SimpleNamespace(sleep=lambda seconds: None))
    utils.close_session()


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    """Make the class that answers the requests to a Hub."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass

        def parse_request(self) -> bool:
            """Kill the victim at the request that `kill_at` names, or mark that to be fatal."""
            self.fatal = False
            if not super().parse_request():
                return False
            self.fatal = hub.kills()
            if self.fatal and not hub.kill_late:
                hub.kill()
                self.close_connection = True
                return False
            return True

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            """Answer a request by its path. body: whether the content is sent, as for GET."""
            path = self.path.split("?")[0].strip("/")
            parts = path.split("/")
            if path.startswith("api/models/") and parts[4:5] == ["tree"]:
                self.tree("/".join(parts[2:4]), parts[5], body)
            elif path.startswith("api/models/"):
                revision = parts[5] if len(parts) > 5 and parts[4] == "revision" else "main"
                self.info("/".join(parts[2:4]), revision, body)
            elif len(parts) > 4 and parts[2] == "resolve":
                self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), body)
            else:
                self.reply(404, b"{}", body)

        def known(self, repo: str, revision: str, body: bool) -> bool:
            """Whether a revision can be read; otherwise the error is sent."""
            if repo not in hub.repos:
                self.reply(
                    404, b'{"error":"Repository not found"}', body, {"X-Error-Code": "RepoNotFound"}
                )
            elif repo in hub.gated and not self.headers.get("Authorization"):
                self.reply(401, b'{"error":"gated"}', body, {"X-Error-Code": "GatedRepo"})
            elif revision not in ("main", "v2", hub.commit(repo), *hub.branches):
                self.reply(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
            else:
                return True
            return False

        def info(self, repo: str, revision: str, body: bool) -> None:
            if not self.known(repo, revision, body):
                return
            place = hub.at(repo, revision)

            # the names that fields of a listing have here
            renamed = {"rfilename": "path", "size": "size", "blobId": "oid", "lfs": "lfs"}
            siblings = []
            for file in hub.listing(place):
                siblings.append({name: file[key] for name, key in renamed.items() if key in file})
            data = {
                "id": repo,
                "modelId": repo,
                "sha": hub.commit(place),
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "private": place in hub.private,
                "gated": "manual" if place in hub.gated else False,
                "siblings": siblings,
            }
            self.reply(200, json.dumps(data).encode(), body)

        def tree(self, repo: str, revision: str, body: bool) -> None:
            if self.known(repo, revision, body):
                self.reply(200, json.dumps(hub.listing(hub.at(repo, revision))).encode(), body)

        def file(self, repo: str, revision: str, name: str, body: bool) -> None:
            """Send a file, or the range of it that the request names."""
            if not self.known(repo, revision, body):
                return
            place = hub.at(repo, revision)
            headers = {"X-Repo-Commit": hub.commit(place)}
            path = hub.repos[place] / name
            if not path.is_file():
                self.reply(404, b"{}", body, {"X-Error-Code": "EntryNotFound", **headers})
                return
            content = path.read_bytes()
            headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            if not body:
                self.reply(200, content, body, headers)
                return

            # "bytes=100-" or "bytes=100-199", whose last byte is included
            status = 200
            range_header = self.headers.get("Range")
            if range_header:
                status = 206
                first, _, last = range_header.removeprefix("bytes=").partition("-")
                stop = len(content)
                if last:
                    stop = min(int(last) + 1, stop)
                headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(content)}"
                content = content[int(first) : stop]
            elif path.suffix in LARGE:
                hub.open.wait(60)

            hub.sent[name] = hub.sent.get(name, 0) + len(content)
            if hub.dropped and len(content) > 1000:
                hub.dropped -= 1
                self.break_off(status, content, headers)
                return
            self.reply(status, content, body, headers)

        def break_off(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            """Send half of a content and close the connection."""
            self.send_head(status, len(content), headers)
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True

        def send_head(self, status: int, size: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(size))
            self.end_headers()

        def reply(
            self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None
        ) -> None:
            """Send an answer; to a fatal request, kill the victim in its place."""
            if self.fatal:
                hub.kill()
                self.close_connection = True
                return
            self.send_head(status, len(content), headers or {})
            if body:
                self.wfile.write(content)

    return Handler


def serving() -> AbstractContextManager[Hub]:
    """A running Hub without repositories."""
    hub = Hub()
    return running(hub, handler(hub))


@contextmanager
def running(hub: H, kind: type[BaseHTTPRequestHandler]) -> Iterator[H]:
    """Run a Hub in threads, at a free port of this machine. kind: what answers its requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
