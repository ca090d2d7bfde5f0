"""A Space as a process, with the environment that huggingface.co gives one, and visitors that speak its HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx

from ropeconv.ui.server import files

from ..support.waiting import free_ports, until
from .provider import CLIENT_ID, CLIENT_SECRET, SCOPES
from .space_hub import OWNER, SpaceHub

PROGRAM = "    serve_space()"


def environment(hub: SpaceHub, folder: Path, port: int) -> dict[str, str]:
    """The variables of a Space, and those of an owner who has left a login in it."""
    home = folder / "home"
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    home.mkdir()
    (home / "token").write_text(OWNER)
    return {
        **kept, **hub.environment(home), "SYSTEM": "spaces", "SPACE_ID": "me/ropeconv", "HF_TOKEN": OWNER,
        "OAUTH_CLIENT_ID": CLIENT_ID, "OAUTH_CLIENT_SECRET": CLIENT_SECRET, "OAUTH_SCOPES": SCOPES,
        "OPENID_PROVIDER_URL": hub.url, "GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": str(port),
        "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary(folder)),
    }  # fmt: skip


def temporary(folder: Path) -> Path:
    """The folder for temporary files of a Space, by a path that is short enough for a socket. folder: of the Space."""
    return Path(tempfile.gettempdir()) / f"space-{hashlib.sha1(str(folder).encode()).hexdigest()[:8]}"


@dataclass
class Space:
    """A Space that runs. address: of it. folder: where it runs. process: of it. hub: that it knows."""

    address: str
    folder: Path
    process: subprocess.Popen[bytes]
    hub: SpaceHub

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def scratch(self) -> list[Path]:
        """The temporary folders of the Space and of each of its requests."""
        return sorted(temporary(self.folder).glob("ropeconv-*"))


@contextmanager
def space(hub: SpaceHub, folder: Path, arguments: str = "") -> Iterator[Space]:
    """The published program, while it runs. folder: an empty one for it. arguments: of `serve_space`."""
    texts = files()
    assert PROGRAM in texts["app.py"]
    folder.mkdir(exist_ok=True)
    temporary(folder).mkdir()
    (folder / "app.py").write_text(texts["app.py"].replace(PROGRAM, PROGRAM.replace("()", f"({arguments})")))
    [port] = free_ports(1)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "app.py"], cwd=folder, env=environment(hub, folder, port), stdout=log, stderr=log
        )
        found = Space(f"http://localhost:{port}", folder, process, hub)
        try:
            until(lambda: process.poll() is not None or _answers(found.address), "the Space")
            assert process.poll() is None, found.log
            yield found
        finally:
            process.terminate()
            process.wait(60)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/config").status_code == 200
    except httpx.TransportError:
        return False


@dataclass
class Caller:
    """Somebody who speaks to a Space without a browser. cookie: of their login. session: of their page. event: what
    they asked for last. network: their address, which the proxy of the Hub states."""

    space: Space
    cookie: str = ""
    session: str = field(default_factory=lambda: token_hex(6))
    event: str = ""
    network: str = field(default_factory=lambda: f"2001:db8:{token_hex(2)}:{token_hex(2)}::1")

    def __post_init__(self) -> None:
        one_request = httpx.Limits(max_keepalive_connections=0)
        headers = {"X-Forwarded-For": self.network}
        self.http = httpx.Client(base_url=self.space.address, headers=headers, timeout=120, limits=one_request)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, headers={"Cookie": self.cookie}, **options)

    def login(self, name: str) -> None:
        """Signs in, as the buttons do it."""
        asked = self._follow(self.get("/login/huggingface?_target_url=/inspect"))
        said = httpx.get(f"{asked}&as={name}")
        self._follow(self.get(said.headers["location"].replace(self.space.address, "")))

    def _follow(self, response: httpx.Response) -> str:
        assert response.is_redirect, response.text
        (pair,) = [one for one in response.headers.get_list("set-cookie") if one.startswith("session=")]
        assert "secure" in pair.lower()
        assert "httponly" in pair.lower()
        self.cookie = pair.split(";")[0]
        return str(response.headers["location"])

    def config(self, page: str) -> dict[str, Any]:
        return dict(self.get("/config", params={"page": page}).json())

    def upload(self, name: str, content: bytes) -> httpx.Response:
        sent = {"files": (name, content)}
        return self.http.post("/gradio_api/upload", files=sent, headers={"Cookie": self.cookie})

    def dropped(self, name: str, content: bytes) -> dict[str, Any]:
        """An uploaded file, as a form has it."""
        (path,) = self.upload(name, content).json()
        return {"path": path, "meta": {"_type": "gradio.FileData"}, "orig_name": name}

    def ask(self, page: str, button: str, **typed: Any) -> str:
        """What a page says when a button is pressed, `problem: ...` where Gradio itself refuses. As `press`."""
        return self.answer(self.press(page, button, **typed))

    def answer(self, joined: httpx.Response) -> str:
        return self.last() if joined.status_code == 200 else f"problem: {joined.status_code} {joined.text}"

    def press(self, page: str, button: str, **typed: Any) -> httpx.Response:
        """Presses a button. page: its name. button: its id. typed: values by the id of a component, or its label."""
        config = self.config(page)
        known = {one["id"]: one["props"] for one in config["components"]}
        ids = {props.get("elem_id"): number for number, props in known.items()}
        found = [
            one for one in config["dependencies"] if [ids[button], "click"] in one["targets"] and one["backend_fn"]
        ]
        asked = next((one for one in found if one["outputs"]), found[0])
        names = [known[number].get("elem_id") or known[number].get("label", "") for number in asked["inputs"]]
        assert typed.keys() <= set(names), f"{typed.keys()} of {names}"
        values = [known[number].get("value") for number in asked["inputs"]]
        data = [typed.get(name, value) for name, value in zip(names, values, strict=True)]
        return self.join(asked["id"], data, ids[button])

    def join(self, number: int, data: list[Any], trigger: int | None = None) -> httpx.Response:
        said = {"fn_index": number, "data": data, "session_hash": self.session, "trigger_id": trigger}
        joined = self.http.post("/gradio_api/queue/join", json=said, headers={"Cookie": self.cookie})
        self.event = joined.json()["event_id"] if joined.status_code == 200 else ""
        return joined

    def last(self) -> str:
        found = "nothing"
        with self.http.stream("GET", f"/gradio_api/queue/data?session_hash={self.session}") as stream:
            for line in stream.iter_lines():
                said = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
                if said.get("event_id") != self.event:
                    continue
                output = said.get("output") or {}
                if said.get("msg") == "process_completed":
                    failed = None if said["success"] else f"problem: {output.get('error')}"
                    return failed or found
                if said.get("msg") == "process_generating":
                    found = _changed(found, output["data"])
        return found


def _changed(before: str, data: list[Any]) -> str:
    """The text after a message, which has the changes alone after the first one."""
    last = data[-1]
    if isinstance(last, str):
        return last
    for action, path, value in last if isinstance(last, list) else []:
        if not path:
            before = before + value if action == "append" else value
    return before


def text_of(html: str) -> str:
    """An answer without its markup."""
    return re.sub(r"<[^>]*>", " ", html)
