"""A Hub on localhost as a Space sees it: repositories of type space, visitors with tokens of their own, logins."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from ..support.hub_server import running
from ..support.hub_writing import WritingHub, writing
from .provider import Provider, with_logins

TOKENS = {"anna": "hf_anna", "bert": "hf_bert", "me": "hf_owner"}
OWNER = TOKENS["me"]
"""Whose Space it is."""


class Request(NamedTuple):
    """A request that came. token: of its login, empty without one."""

    method: str
    path: str
    token: str


class SpaceHub(WritingHub):
    """asked: the requests. spaces: what repositories of this type were created with. readers: who may read a private
    repository. drips: names of files that come slowly."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[Request] = []
        self.spaces: dict[str, dict[str, Any]] = {}
        self.readers: dict[str, set[str]] = {}
        self.drips: set[str] = set()
        self.logins = Provider(TOKENS)

    def writes(self) -> list[Request]:
        """The requests that change something."""
        return [one for one in self.asked if one.method != "GET" and one.method != "HEAD" and "/oauth/" not in one.path]


def visited(hub: SpaceHub) -> type[BaseHTTPRequestHandler]:
    """The handler of such a Hub."""

    class Handler(writing(hub)):  # type: ignore[misc]
        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            login = self.headers.get("Authorization") or ""
            hub.asked.append(Request(self.command, self.path, login.removeprefix("Bearer ")))
            self.path = self.path.replace("/api/spaces/", "/api/models/", 1)
            self.path = "/" + self.path.removeprefix("/").removeprefix("spaces/")
            return True

        @property
        def who(self) -> str:
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            return next((name for name, known in TOKENS.items() if known == token), "")

        def do_GET(self) -> None:
            if self.path == "/api/whoami-v2" and self.who:
                self.json(200, {"type": "user", "name": self.who, "orgs": []})
            elif self.path == "/api/whoami-v2":
                self.json(401, {"error": "Invalid username or password."})
            elif any(self.path.endswith(name) for name in hub.drips):
                self.drip()
            else:
                super().do_GET()

        def drip(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            with suppress(OSError):
                for _ in range(600):
                    if not hub.drips:
                        break
                    self.wfile.write(b" ")
                    time.sleep(0.1)
            self.close_connection = True

        def known(self, repo: str, revision: str, body: bool) -> bool:
            if repo in hub.readers and self.who not in hub.readers[repo]:
                said = "GatedRepo" if self.who else "RepoNotFound"
                self.reply(403 if self.who else 401, b'{"error":"no"}', body, {"X-Error-Code": said})
                return False
            return bool(super().known(repo, revision, body))

        def create(self, said: dict[str, Any]) -> None:
            if said.get("organization") != self.who:
                self.json(403, {"error": "You don't have the rights to create a repository there."})
                return
            if said.get("type") == "space":
                hub.spaces[f"{said['organization']}/{said['name']}"] = said
            super().create(said)

        def commit(self, repo: str, data: bytes, pull: bool) -> None:
            if repo.split("/")[0] != self.who:
                self.json(403, {"error": "You don't have the rights to commit there."})
                return
            if repo in hub.repos:
                super().commit(repo, data, pull)

    return with_logins(hub.logins, Handler)


@contextmanager
def serving_visitors(root: Path) -> Iterator[SpaceHub]:
    """A running Hub that keeps new repositories below `root`."""
    hub = SpaceHub(root)
    with running(hub, visited(hub)):
        hub.logins.url = hub.url
        yield hub


@contextmanager
def serving_models(root: Path, llama: Path) -> Iterator[SpaceHub]:
    """them/llama and them/slow for everybody, closed/llama for anna alone."""
    for name in ("llama", "closed"):
        shutil.copytree(llama, root / name)
    (root / "closed" / "SECRET.md").write_text("of closed/llama")
    with serving_visitors(root / "hub") as found:
        found.repos |= {"them/llama": root / "llama", "closed/llama": root / "closed", "them/slow": root / "llama"}
        found.readers["closed/llama"] = {"anna"}
        found.private.add("closed/llama")
        yield found
