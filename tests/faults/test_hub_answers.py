"""Answers that a Hub should never give: each ends in a sentence, in seconds, and nothing is
written.
"""

import hashlib
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.models import hub as hub_client
from ropeconv.models.hub import HubSource

from ..support.extent import few, tally
from ..support.hub_server import Hub, handler, running, talk_to

Change = Callable[[dict[str, Any]], Any]


def changed(**values: Any) -> Change:
    return lambda info: {**info, **values}


def rows(**values: Any) -> Change:
    """The same values in every row of the listing."""
    return lambda info: {**info, "siblings": [{**row, **values} for row in info["siblings"]]}


def same(info: dict[str, Any]) -> dict[str, Any]:
    return info


BODIES = {
    "html": b"<!doctype html><title>Sign in</title>",
    "nothing": b"",
    "not UTF-8": b"\xff\xfe\x00",
    "a list": b"[]",
    "half of it": b'{"id": "me/tiny", "siblings": [',
    "deep nesting": b"[" * 100_000 + b"]" * 100_000,
}
ROWS: dict[str, list[Any]] = {
    "rfilename": [
        None,
        "../outside.txt",
        "/tmp/outside.txt",
        "config.json\0.txt",
        "x" * 100_000,
        "config.json",
    ],
    "size": [-1, "12", 1 << 70],
    "lfs": ["x", {"sha256": "../../outside", "size": 1, "pointerSize": 130}],
}
LISTINGS: dict[str, Change | bytes] = {
    **BODIES,
    "no id": lambda info: {key: value for key, value in info.items() if key != "id"},
    "no name": changed(siblings=[{"size": 1}]),
    **{f"siblings: {value}": changed(siblings=value) for value in ("config.json", [1, 2])},
    **{f"sha: {value}": changed(sha=value) for value in ("../../../outside", 7)},
    **{
        f"{key}: {str(value)[:30]!r}": rows(**{key: value})
        for key, values in ROWS.items()
        for value in values
    },
}
HEADERS = {
    "ETag": '"../../../../outside"',
    "X-Linked-Etag": '"/tmp/outside"',
    "X-Repo-Commit": "../../../outside",
    "X-Linked-Size": "999999",
    "Content-Encoding": "gzip",
}


class Hostile(Hub):
    """A Hub with one Llama. change: of its listing. header: of the answers about files, in place of
    the real one.

    drips: in paths whose bodies never end. elsewhere: the Hub that answers about files lead to.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.repos["me/tiny"] = folder
        self.change: Change | bytes = same
        self.header: tuple[str, str] | None = None
        self.drips = self.elsewhere = ""
        self.seen: list[tuple[str, str | None]] = []
        self.over = threading.Event()


def hostile(hub: Hostile) -> type[BaseHTTPRequestHandler]:
    class Handler(handler(hub)):  # type: ignore[misc]
        def answer(self, body: bool) -> None:
            hub.seen.append((self.path, self.headers.get("Authorization")))
            if body and hub.drips and hub.drips in self.path:
                self.drip()
            elif hub.elsewhere and "/resolve/" in self.path:
                content = (hub.repos["me/tiny"] / self.path.rsplit("/", 1)[1]).read_bytes()
                headers = {
                    "X-Linked-Etag": hashlib.sha256(content).hexdigest(),
                    "X-Linked-Size": str(len(content)),
                }
                headers |= {
                    "Location": hub.elsewhere + self.path,
                    "X-Repo-Commit": hub.commit("me/tiny"),
                }
                self.reply(302, b"", body, headers)
            else:
                super().answer(body)

        def reply(
            self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None
        ) -> None:
            headers = dict(headers or {})
            if "/api/models/" in self.path and "/tree/" not in self.path and status == 200:
                change = hub.change
                content = (
                    change
                    if isinstance(change, bytes)
                    else json.dumps(change(json.loads(content))).encode()
                )
            elif hub.header and "/resolve/" in self.path:
                headers[hub.header[0]] = hub.header[1]
            super().reply(status, content, body, headers)

        def drip(self) -> None:
            self.send_response(200)
            for name, value in {"ETag": '"0"', "X-Repo-Commit": hub.commit("me/tiny")}.items():
                self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                while not hub.over.is_set():
                    self.wfile.write(b"1\r\n \r\n")
                    time.sleep(0.05)
            except OSError:
                self.close_connection = True

    return Handler


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    """A Hub that the huggingface_hub of this process talks to."""
    hostile_hub = Hostile(llama)
    with running(hostile_hub, hostile(hostile_hub)) as running_hub:
        talk_to(hostile_hub, tmp_path / "cache", monkeypatch)
        yield running_hub
        hostile_hub.over.set()


def read() -> None:
    """What a plan reads, and a file that it copies."""
    source = HubSource("me/tiny", None)
    source.config()
    assert source.headers
    source.path("model.safetensors")


@pytest.mark.parametrize("name", few(list(LISTINGS), 4))
def test_a_listing_that_is_none(name: str, hub: Hostile, tmp_path: Path) -> None:
    read()
    hub.change = LISTINGS[name]
    begun = time.monotonic()
    with pytest.raises(BadSource, match=r"me/tiny"):
        read()
    assert time.monotonic() - begun < 30
    assert not list(tmp_path.rglob("outside*"))
    tally("hostile", "Hub listing", 1)


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_would_become_names_in_the_cache(
    name: str, hub: Hostile, tmp_path: Path
) -> None:
    hub.header = (name, HEADERS[name])
    with pytest.raises(BadSource, match=r"me/tiny .*(in its header|compressed|is malformed)"):
        read()
    assert not list(tmp_path.rglob("outside*"))


@pytest.mark.parametrize("where", ["/api/models", "/resolve/"])
def test_a_body_without_an_end(where: str, hub: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(hub_client, "PATIENCE", 1.0)
    hub.drips = where
    begun = time.monotonic()
    with pytest.raises(BadSource, match=r"me/tiny (takes longer than|is slower than)"):
        read()
    assert time.monotonic() - begun < 30


def test_a_large_listing_is_refused_before_it_is_decoded(hub: Hostile) -> None:
    hub.change = b'{"id": "me/tiny", "siblings": [' + b"{}," * (8 << 20) + b"{}]}"
    tracemalloc.start()
    with pytest.raises(BadSource, match=r"me/tiny is longer than 16,777,216 bytes"):
        read()
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()


def test_weights_with_another_sha256_than_is_listed_are_not_kept(
    hub: Hostile, tmp_path: Path
) -> None:
    def zeros(info: dict[str, Any]) -> dict[str, Any]:
        for row in info["siblings"]:
            row.get("lfs", {})["sha256"] = "0" * 64
        return info

    def kept() -> int:
        return len(list((tmp_path / "cache").rglob("model.safetensors")))

    hub.change = zeros
    for _ in range(2):
        with pytest.raises(BadSource, match=r"does not match the sha256 that the Hub lists"):
            read()
    assert kept() == 0
    hub.change = same
    read()
    assert kept() == 1


def test_a_redirect_to_another_host_goes_without_the_token(hub: Hostile, llama: Path) -> None:
    other = Hostile(llama)
    with running(other, hostile(other)):
        hub.elsewhere = other.url
        HubSource("me/tiny", None).path("model.safetensors")
    assert any(token == "Bearer hf_sesame" for _, token in hub.seen)
    assert other.seen
    assert [path for path, token in other.seen if token] == []
