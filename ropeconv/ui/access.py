"""Which requests the pages answer: those of their own origin, and on one's own machine those with the cookie.

Cookies of 127.0.0.1 are sent to every port of it. So the pages are below a path that cannot be guessed, and the
cookie is bound to that path: a browser sends it nowhere else, and without the path it is of no use.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PARAMETER = "key"
LOOPBACK = ("127.0.0.1", "localhost")
OWN = ("same-origin", "none")
"""Values of Sec-Fetch-Site: of a request of the page itself, and of one that the user made."""
CLOSED = (
    "This address is not valid, or it was used before. Open the last address that `ropeconv ui` has printed, or start "
    "`ropeconv ui` again."
)
OTHER_HOST = "This page is not reached by this host name; open the address that `ropeconv ui` has printed."
OTHER_ORIGIN = "This page does not answer requests of other pages; open its address directly."
REDIRECT = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>ropeconv</title>'
    '<meta http-equiv="refresh" content="0;url=%s"></head><body><a href="%s">Open ropeconv</a></body></html>\n'
)
HEADERS = {"referrer-policy": "same-origin", "x-frame-options": "DENY", "cross-origin-resource-policy": "same-origin"}
"""Headers of every answer on one's own machine: no other page learns the path, shows the page or loads its files."""


def new_key() -> str:
    """Return 192 random bits as text of an address."""
    return secrets.token_urlsafe(24)


def redirect(address: str) -> str:
    """Return an HTML page that leads to an address at once."""
    return REDIRECT % (escape(address), escape(address))


def write_redirect(folder: Path, address: str) -> Path:
    """Write the page that leads to an address into a folder, readable only by this user, and return its path.

    A browser is opened by it and not by the address, since every user of the machine sees the arguments of processes.
    """
    path = folder / "open.html"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(redirect(address))
    return path


class OriginMiddleware:
    """Refuse what pages of other origins send: reads, form posts, uploads, preflights of CORS and websockets.

    Args:
        app: The application behind it.
        hosts: The host names of the page, which then must be that of a request, and all requests but reads must state
            their origin; None for any name, as behind the proxy of a Space.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        problem = "" if scope["type"] == "lifespan" else self._problem(scope)
        if problem:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse(problem, 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _problem(self, scope: Scope) -> str:
        headers = _headers(scope)
        hosts, origins, sites = (headers.getlist(name) for name in ("host", "origin", "sec-fetch-site"))
        if self.hosts is not None and [_hostname(host) in self.hosts for host in hosts] != [True]:
            return OTHER_HOST
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not all(site in OWN for site in sites) and not (is_read and _is_navigation(headers, self.hosts is None)):
            return OTHER_ORIGIN
        if self.hosts is None:  # a proxy may change the host, so what the browser says of the origin comes first
            hosts, origins = hosts + headers.getlist("x-forwarded-host"), [] if sites else origins
        elif not origins and not is_read:
            return OTHER_ORIGIN
        known = {host.lower() for host in hosts if host}
        return "" if all(_netloc(origin) in known for origin in origins) else OTHER_ORIGIN


class KeyMiddleware:
    """Let requests through that have the path and the cookie, which the address with the key yields once.

    Args:
        app: The application behind it, which is mounted below `path`.
        path: The first part of the path of every page.
        key: The key of the first address.
        cookie: The name of the cookie.
        renewed: Called with the key of the next address when one was used.
    """

    def __init__(self, app: ASGIApp, path: str, key: str, cookie: str, renewed: Callable[[str], None]) -> None:
        self.app, self.path, self.key, self.cookie, self.renewed = app, path, key, cookie, renewed
        self.value = new_key()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        from starlette.responses import HTMLResponse, PlainTextResponse

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        key = next((value for name, value in query if name == PARAMETER), "")
        if self._is_known(scope):
            await self.app(scope, receive, guarded)
        elif scope["type"] == "http" and scope["method"] == "GET" and _same(key, self.key):
            self.key = new_key()
            others = urlencode([pair for pair in query if pair[0] != PARAMETER])
            place = f"/{self.path}/{quote(scope['path'].lstrip('/'))}" + (f"?{others}" if others else "")
            cookie = f"{self.cookie}={self.value}; Path=/{self.path}; HttpOnly; SameSite=Strict"
            # a page and not a redirect: what follows is then a request of this origin, which has the cookie
            answer = HTMLResponse(redirect(place), headers={"set-cookie": cookie, "cache-control": "no-store"})
            await answer(scope, receive, guarded)
            self.renewed(self.key)
        else:
            await PlainTextResponse(CLOSED, 401)(scope, receive, guarded)

    def _is_known(self, scope: Scope) -> bool:
        """Whether a request has the path and the cookie, and no other page leads to it."""
        headers = _headers(scope)
        path = scope["path"].split("/")[1:2]
        pairs = [pair.strip().partition("=") for pair in headers.get("cookie", "").split(";")]
        # another port may have set one with this name too
        has_cookie = any(name == self.cookie and _same(value, self.value) for name, _, value in pairs)
        has_path = _same(path[0] if path else "", self.path)
        return has_cookie and has_path and headers.get("sec-fetch-site", "none") in OWN


def _headers(scope: Scope) -> Headers:
    from starlette.datastructures import Headers

    return Headers(scope=scope)


def _is_navigation(headers: Headers, frames: bool) -> bool:
    """Whether a browser opens a page. frames: in a frame, too."""
    shown = ("document", "iframe") if frames else ("document",)
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") in shown


def _netloc(origin: str) -> str:
    """Return host and port of an origin, and an empty text for "null" and what is not an origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _hostname(host: str) -> str:
    """Return the name in a Host header without its port, and an empty text for what is not a name."""
    match = re.fullmatch(r"([a-z0-9.-]+)(:[0-9]+)?", host.lower())
    return match[1] if match else ""


def _same(text: str, known: str) -> bool:
    return secrets.compare_digest(text.encode(), known.encode())


FORM = 1 << 20
"""Bytes of a request that is not an upload: forms, which are far smaller."""
BODY_HEADERS = 1 << 16
"""Bytes of an upload that are not of its file."""
UPLOAD = "/gradio_api/upload"
DISCARDED = 256 << 20
"""Bytes of a refused body that are read and thrown away."""
LARGE = "This file is too large for this page."
FULL = "Too many files were dropped on this page in the last two hours; try again later, or run `ropeconv ui` yourself."


def visitor_of(scope: Scope) -> str:
    """Return the network address that a request comes from, as the proxy of the Hub states it; of IPv6 the network."""
    forwarded = next((value for name, value in scope["headers"] if name == b"x-forwarded-for"), b"").decode("latin-1")
    text = forwarded.partition(",")[0].strip() or (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return str(text)[:64]
    return str(address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False))


@dataclass
class Uploads:
    """The dropped files that are kept.

    Attributes:
        of_one: Bytes that one visitor may have.
        of_all: Bytes that all visitors may have together.
        seconds: How long a file is kept.
    """

    of_one: int
    of_all: int
    seconds: float
    _kept: list[Upload] = field(default_factory=list)

    def begin(self, visitor: str, size: int) -> Upload | None:
        """Return a new upload, None where it would be too much. size: its bytes, or the most that it may have."""
        now = time.monotonic()
        self._kept = [earlier for earlier in self._kept if now - earlier.since < self.seconds]
        upload = Upload(visitor, max(size, BODY_HEADERS), now)
        of_one = sum(earlier.size for earlier in self._kept if earlier.visitor == visitor)
        of_all = sum(earlier.size for earlier in self._kept)
        if of_one + upload.size > self.of_one or of_all + upload.size > self.of_all:
            return None
        self._kept.append(upload)
        return upload


@dataclass
class Upload:
    """A request with dropped files. size: its bytes; at least some thousand, since a small file takes space too."""

    visitor: str
    size: int
    since: float


class BodyMiddleware:
    """Refuse requests with larger bodies, and uploads where there are too many files already.

    Args:
        app: The application behind it.
        upload: Bytes of a dropped file.
        uploads: The dropped files that are kept.
    """

    def __init__(self, app: ASGIApp, upload: int, uploads: Uploads) -> None:
        self.app, self.upload, self.uploads = app, upload, uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request by the length that it announces, and end one that is longer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        from starlette.responses import PlainTextResponse

        is_upload = scope["path"].rstrip("/") == UPLOAD and scope["method"] == "POST"
        most = self.upload + BODY_HEADERS if is_upload else FORM
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), None)
        if announced is not None and (not announced.isdigit() or int(announced) > most):
            await _discard(receive)
            await PlainTextResponse(LARGE, 413, {"connection": "close"})(scope, receive, send)
            return
        upload = None
        if is_upload:
            upload = self.uploads.begin(visitor_of(scope), most if announced is None else int(announced))
            if upload is None:
                await _discard(receive)
                await PlainTextResponse(FULL, 429, {"connection": "close"})(scope, receive, send)
                return
        done = 0

        async def counted() -> Message:
            nonlocal done
            message = await receive()
            done += len(message.get("body", b""))
            return message if done <= most else {"type": "http.disconnect"}

        try:
            await self.app(scope, counted, send)
        finally:
            if upload is not None:
                upload.size = max(min(done, most), BODY_HEADERS)


async def _discard(receive: Receive) -> None:
    """Read a refused body: a client may lose the answer of a server that closes the connection while it sends."""
    remaining = DISCARDED
    while remaining > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return
        remaining -= len(message.get("body", b""))
