"""Answers of servers: typed, and bounded in time and size whatever a server sends."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx2 as httpx
import pytest

from ropeconv.features.servers import protocol as transport
from ropeconv.features.servers.protocol import Limits, ModelList, ask
from ropeconv.rope.errors import RopeconvError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SIZES = Limits(0.4, 10_000)


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a server that gives one connection to `answer`."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            connection.recv(65536)
            answer(connection)

    threading.Thread(target=run, daemon=True).start()
    with listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def whole(body: bytes, head: bytes = HEAD) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    )


def asked(url: str, limits: Limits = SIZES) -> Any:
    with httpx.Client(base_url=url) as client:
        return ask(client, "/v1/models", ModelList, limits=limits)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of these tests: 0.6 seconds for a head, and as many for the rest."""
    monkeypatch.setattr(transport, "SECONDS_TO_CONNECT", 0.2)
    monkeypatch.setattr(transport, "SECONDS_FOR_REST", 0.6)


@pytest.mark.parametrize(
    ("start", "piece"), [(HEAD, b"X: y\r\n"), (HEAD + b"Content-Length: 1000\r\n\r\n", b" ")]
)
def test_no_answer_takes_longer_than_both_limits(start: bytes, piece: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        for _ in range(100):
            time.sleep(0.1)
            connection.sendall(piece)

    begun = time.monotonic()
    with (
        serving(answer) as url,
        pytest.raises(RopeconvError, match=r"does not answer (\S+ within|\(timed out\))"),
    ):
        asked(url)
    assert time.monotonic() - begun < 9


def test_an_endless_answer_ends_at_the_size_that_was_asked_for() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")

    with (
        serving(endless) as url,
        pytest.raises(RopeconvError, match="longer than the allowed 10,000 bytes"),
    ):
        asked(url)


def test_compressed_answers_are_refused_unread() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    answer = whole(bomb, HEAD + b"Content-Encoding: gzip\r\n")
    with serving(answer) as url, pytest.raises(RopeconvError, match="compresses its answers"):
        asked(url, Limits(0.4, 1 << 20))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<!doctype html>", "does not answer in JSON"),
        (b'{"data": NaN}', "does not answer in JSON"),
        (b"[" * 100_000, "another format than|does not answer in JSON"),
        (b"[]", r"Expected `object`, got `array`"),
        (b'{"data": [{"id": {}}]}', r"at `\$.data\[0\].id`"),
        (b'{"data": [{"id": "\\ud800"}]}', "JSON|as it is known"),
        (b'{"data": [{"id": "x", "max_model_len": -1}]}', "max_model_len"),
    ],
)
def test_answers_of_other_types_are_a_sentence(body: bytes, message: str) -> None:
    with serving(whole(body)) as url, pytest.raises(RopeconvError, match=message):
        asked(url, Limits(0.4, 1 << 20))


@pytest.mark.parametrize(
    ("status", "head", "message"),
    [
        (301, b"Location: http://elsewhere/\r\n", "redirects /v1/models to http://elsewhere/"),
        (401, b"", "wants a key"),
        (500, b"", "refuses .500.: it is tired"),
        (204, b"", "refuses .204."),
    ],
)
def test_other_statuses_are_a_sentence(status: int, head: bytes, message: str) -> None:
    body = b'{"error": {"message": "it is tired"}}' if status != 204 else b""
    with (
        serving(whole(body, b"HTTP/1.1 %d X\r\n" % status + head)) as url,
        pytest.raises(RopeconvError, match=message),
    ):
        asked(url)
