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
    """Write a page that leads to an address, readable only by this user, and return its path.

    A browser is opened with the page and not with the address, since every user of the machine sees
    the arguments of processes.

    Args:
        folder: The folder for the page.
        address: The address.
    """
    path = folder / "open.html"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(redirect(address))
    return path


class OriginMiddleware:
    """Refuses what pages of other origins send.

    It covers reads, form posts, uploads, preflights of CORS and websockets. A request must be to a
    host name of this machine, and all requests but reads must state their origin.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Guard an application of ASGI, such as FastAPI."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "lifespan":
            problem = _refusal(scope)
            if problem:
                from starlette.responses import PlainTextResponse

                await PlainTextResponse(problem, 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _refusal(scope: Scope) -> str:
    """Return why a request is refused; empty where it is not.

    Any page that the user visits can send requests to this machine. Browsers say with headers from
    where a request comes, and which it is.
    """
    # DNS rebinding: evil.example resolves to 127.0.0.1, and its pages count as the same origin.
    # The browser still sends that name as the host.
    headers = _headers(scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1:
        return OTHER_HOST
    (host,) = hosts
    if _hostname(host) not in LOOPBACK:
        return OTHER_HOST

    # a link on another site may open a page here, but only in a tab of its own, and not in a frame
    is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    navigates = headers.get("sec-fetch-mode") == "navigate"
    is_whole_page = headers.get("sec-fetch-dest") == "document"
    is_link = is_read and navigates and is_whole_page
    is_from_other_site = any(site not in OWN for site in headers.getlist("sec-fetch-site"))
    if is_from_other_site and not is_link:
        return OTHER_ORIGIN

    # older browsers send no sec-fetch-site; all send the origin with a POST, which must be this
    # host
    origins = headers.getlist("origin")
    if not origins and not is_read:
        return OTHER_ORIGIN
    for origin in origins:
        if _netloc(origin) != host.lower():
            return OTHER_ORIGIN
    return ""


class KeyMiddleware:
    """Lets requests through that have the path and the cookie.

    The address with the key gives a browser both, once.
    """

    def __init__(
        self, app: ASGIApp, path: str, key: str, cookie: str, on_new_key: Callable[[str], None]
    ) -> None:
        """Guard an application: a browser needs an address with a key, and then a cookie.

        A key works once. A browser that opens an address with the key (?key=...) gets the cookie,
        and a new key is made for the next browser.

        Args:
            app: The application of ASGI to guard.
            path: The first part of the path of every page.
            key: The first key.
            cookie: The name of the cookie.
            on_new_key: Called with each new key, which is then shown to the user.
        """
        self.app = app
        self.path = path
        self.key = key  # the key that works now
        self.cookie = cookie
        self.on_new_key = on_new_key
        self.value = new_key()  # the value of the cookie, the same for all browsers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on.

        The key in the address works once: it is exchanged for a cookie, and a new key is made. So
        an address in the history of the shell, or on a shared screen, opens nothing.
        """
        if scope["type"] == "lifespan":  # of the server itself, not a request
            await self.app(scope, receive, send)
            return
        from starlette.responses import PlainTextResponse

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        if self._is_known(scope):
            await self.app(scope, receive, send_guarded)
        elif self._has_key(scope):
            self.key = new_key()
            await self._let_in(scope, receive, send_guarded)
            self.on_new_key(self.key)
        else:
            await PlainTextResponse(CLOSED, 401)(scope, receive, send_guarded)

    def _has_key(self, scope: Scope) -> bool:
        """Whether a request is to the address with the key."""
        if scope["type"] != "http" or scope["method"] != "GET":
            return False
        for name, value in _query(scope):
            if name == PARAMETER:
                return _same(value, self.key)
        return False

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the key: set the cookie, and lead to the page without the key."""
        from starlette.responses import HTMLResponse

        # the address without the key, which would stay in the history of the browser
        place = f"/{self.path}/{quote(scope['path'].lstrip('/'))}"
        others = urlencode([(name, value) for name, value in _query(scope) if name != PARAMETER])
        if others:
            place += f"?{others}"

        cookie = f"{self.cookie}={self.value}; Path=/{self.path}; HttpOnly; SameSite=Strict"
        headers = {"set-cookie": cookie, "cache-control": "no-store"}
        # A page and not a redirect (303): a browser that comes from a link sends no cookie of
        # SameSite=Strict with the redirected request. A request of this page has it.
        await HTMLResponse(redirect(place), headers=headers)(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        """Return whether a request comes from a browser that was let in, and from no other page.

        Such a browser knows two secrets: the first part of the path, and the value of the cookie.
        """
        headers = _headers(scope)
        if headers.get("sec-fetch-site", "none") not in OWN:
            return False
        _, _, path = scope["path"].partition("/")
        first_part, _, _ = path.partition("/")
        if not _same(first_part, self.path):
            return False
        # another port may have set a cookie with this name too
        for pair in headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.cookie and _same(value, self.value):
                return True
        return False


def _query(scope: Scope) -> list[tuple[str, str]]:
    """Return the parameters of an address."""
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _headers(scope: Scope) -> Headers:
    from starlette.datastructures import Headers

    return Headers(scope=scope)


def _netloc(origin: str) -> str:
    """Return host and port of an origin; empty for "null" and what is not an origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _hostname(host: str) -> str:
    """Return the name in a Host header without its port; empty for what is not a name."""
    match = re.fullmatch(r"([a-z0-9.-]+)(:[0-9]+)?", host.lower())
    return match[1] if match else ""


def _same(text: str, known: str) -> bool:
    """Whether two texts are the same, in a time that does not tell where they differ."""
    return secrets.compare_digest(text.encode(), known.encode())
