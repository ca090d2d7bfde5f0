"""Sends a request to a server and reads the answer, within limits of time and size.

A long prompt is computed for minutes before the first byte comes, so the beginning of an answer may take long. What
comes after it is there already, so the rest has to come without delay. No request lasts longer than both together,
whatever a server sends in between.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ...errors import RopeconvError

if TYPE_CHECKING:
    import httpx2 as httpx

CONNECT = 10.0
REST, RATE = 60.0, 1e6
"""Seconds for the rest of an answer, with one more for each `RATE` bytes that it may have."""
BLOCK = 1 << 16


@dataclass(frozen=True)
class Limits:
    """What an answer may take. seconds: until its head is there. size: of its body, in bytes."""

    seconds: float
    size: int


SHORT = Limits(30.0, 1 << 20)
"""For questions about the server itself."""
PROMPT_SECONDS = 3600.0


def for_prompt(entries: int) -> Limits:
    """Limits for an answer with log-probabilities. entries: how many of them are asked for."""
    return Limits(PROMPT_SECONDS, (1 << 20) + 256 * entries)


@dataclass(frozen=True)
class Response:
    """The answer of a server. status: of HTTP. body: its bytes. location: where a redirection leads, or empty."""

    status: int
    body: bytes
    location: str = ""


class TooLarge(RopeconvError):
    """The body has more bytes than it may."""


def send(client: httpx.Client, method: Literal["GET", "POST"], path: str, limits: Limits, body: Any = None) -> Response:
    """The response to a request.

    client: of the server. method, path: of the request. limits: for the response. body: what is sent as JSON. Raises
    RopeconvError where none comes within the limits.
    """
    reports: queue.Queue[Response | BaseException | None] = queue.Queue()
    asked = (client, method, path, limits, body, reports)
    threading.Thread(target=_read, args=asked, daemon=True).start()  # httpx limits the single read, not the whole
    url = str(client.base_url)
    rest = REST + limits.size / RATE
    for seconds in (limits.seconds + CONNECT, rest):
        try:
            found = reports.get(timeout=seconds)
        except queue.Empty:
            raise RopeconvError(
                f"the server at {url} takes more than {seconds:,.0f} seconds for {path}; restart it, or lower --length"
            ) from None
        if isinstance(found, Response):
            return found
        if isinstance(found, BaseException):
            raise _sentence(found, url, path, limits) from None
    raise AssertionError("a report follows the head of a response")


def _read(
    client: httpx.Client,
    method: str,
    path: str,
    limits: Limits,
    body: Any,
    reports: queue.Queue[Response | BaseException | None],
) -> None:
    """Reads a response, and reports None at its head and then the whole; or what went wrong."""
    import httpx2 as httpx

    within = httpx.Timeout(limits.seconds, connect=CONNECT)
    plain = {"Accept-Encoding": "identity"}  # a few bytes can be gigabytes otherwise
    try:
        with client.stream(method, path, json=body, headers=plain, timeout=within) as response:
            reports.put(None)
            parts, size = [], 0
            for part in response.iter_raw(BLOCK):
                size += len(part)
                if size > limits.size:
                    raise TooLarge
                parts.append(part)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise httpx.DecodingError("it compresses its answers, which it was asked not to")
            location = response.headers.get("Location", "") if response.is_redirect else ""
            reports.put(Response(response.status_code, b"".join(parts), location))
    except Exception as problem:
        reports.put(problem)


def _sentence(problem: BaseException, url: str, path: str, limits: Limits) -> RopeconvError:
    if isinstance(problem, TooLarge):
        return RopeconvError(
            f"the answer of the server at {url} to {path} has more than {limits.size:,} bytes, too many for what was "
            "asked; correct --server"
        )
    why = str(problem) or type(problem).__name__
    return RopeconvError(f"the server at {url} does not answer ({why[:300]}); start it, or correct --server")
