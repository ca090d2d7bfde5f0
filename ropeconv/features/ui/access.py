"""Which requests the pages answer: those of their own origin with the cookie.

Cookies of 127.0.0.1 are sent to every port of it. So the pages are below a path that cannot be
guessed, and the cookie is bound to that path: a browser sends it nowhere else, and without the path
it is of no use.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
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
    "This address is not valid, or it was used before. Open the last address that `ropeconv ui` has"
    " printed, or start `ropeconv ui` again."
)
OTHER_HOST = (
    "This page is not reached by this host name; open the address that `ropeconv ui` has printed."
)
OTHER_ORIGIN = "This page does not answer requests of other pages; open its address directly."
REDIRECT = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>ropeconv</title><meta'
    ' http-equiv="refresh" content="0;url=%s"></head><body><a href="%s">Open'
    " ropeconv</a></body></html>\n"
)
HEADERS = {
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every answer: no other page learns the path, shows the page or loads its files."""


def new_key() -> str:
    """Return 192 random bits as text of an address."""
    return secrets.token_urlsafe(24)


def redirect(address: str) -> str:
    """Return an HTML page that leads to an address at once."""
    return REDIRECT % (escape(address), escape(address))


def write_redirect(folder: Path, address: str) -> Path:
    """Write the page that leads to an address into a folder, readable only by this user, and return
    its path.

    A browser is opened by it and not by the address, since every user of the machine sees the
    arguments of processes.
    """
    path = folder / "open.html"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(redirect(address))
    return path


class OriginMiddleware:
    """Refuse what pages of other origins send: reads, form posts, uploads, preflights of CORS and
    websockets.

    A request must be to a host name of this machine, and all requests but reads must state their
    origin.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        problem = "" if scope["type"] == "lifespan" else _problem(scope)
        if problem:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse(problem, 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _problem(scope: Scope) -> str:
    """Why a request is refused; empty where it is not."""
    headers = _headers(scope)
    hosts, origins, sites = (headers.getlist(name) for name in ("host", "origin", "sec-fetch-site"))
    if [_hostname(host) in LOOPBACK for host in hosts] != [True]:
        return OTHER_HOST
    is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    # a browser opens a page, and not in a frame
    navigates = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == (
        "navigate",
        "document",
    )
    if not all(site in OWN for site in sites) and not (is_read and navigates):
        return OTHER_ORIGIN
    if not origins and not is_read:
        return OTHER_ORIGIN
    known = {host.lower() for host in hosts}
    return "" if all(_netloc(origin) in known for origin in origins) else OTHER_ORIGIN


class KeyMiddleware:
    """Let requests through that have the path and the cookie, which the address with the key yields
    once.

    path: the first part of the path of every page. key: of the first address. renewed: called with
    the key of the next address when one was used.
    """

    def __init__(
        self, app: ASGIApp, path: str, key: str, cookie: str, renewed: Callable[[str], None]
    ) -> None:
        self.app = app
        self.path = path
        self.key = key
        self.cookie = cookie
        self.renewed = renewed
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
            place = f"/{self.path}/{quote(scope['path'].lstrip('/'))}" + (
                f"?{others}" if others else ""
            )
            cookie = f"{self.cookie}={self.value}; Path=/{self.path}; HttpOnly; SameSite=Strict"
            # a page and not a redirect: what follows is then a request of this origin, which has
            # the cookie
            answer = HTMLResponse(
                redirect(place), headers={"set-cookie": cookie, "cache-control": "no-store"}
            )
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
        has_cookie = any(
            name == self.cookie and _same(value, self.value) for name, _, value in pairs
        )
        has_path = _same(path[0] if path else "", self.path)
        return has_cookie and has_path and headers.get("sec-fetch-site", "none") in OWN


def _headers(scope: Scope) -> Headers:
    from starlette.datastructures import Headers

    return Headers(scope=scope)


def _netloc(origin: str) -> str:
    """Return host and port of an origin, and an empty text for "null" and what is not an origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _hostname(host: str) -> str:
    """Return the name in a Host header without its port, and an empty text for what is not a
    name.
    """
    match = re.fullmatch(r"([a-z0-9.-]+)(:[0-9]+)?", host.lower())
    return match[1] if match else ""


def _same(text: str, known: str) -> bool:
    return secrets.compare_digest(text.encode(), known.encode())
