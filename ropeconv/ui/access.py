"""Who may open a page on one's own machine: whoever has the address with the key, as with notebooks.

Without a key every user of the machine could, and every page in a browser that finds the port, and it writes files and
publishes with this user's login.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PARAMETER = "key"
OPEN = ("/gradio_api/startup-events", "/manifest.json")
"""What Gradio asks for at its start, and what a browser asks for without cookies; neither says anything."""
CLOSED = "This page needs the address with the key that `ropeconv ui` has printed. Open that one."


def new_key() -> str:
    """A key that cannot be guessed."""
    return secrets.token_urlsafe(24)


class KeyMiddleware:
    """Lets nobody through without the key, from the address once and from a cookie then. app: behind it. key: of it."""

    def __init__(self, app: ASGIApp, key: str, port: int) -> None:
        self.app, self.key, self.cookie = app, key, f"ropeconv-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or hands it on."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN or self._known(scope):
            await self.app(scope, receive, send)
            return
        from starlette.responses import PlainTextResponse, RedirectResponse

        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == PARAMETER), "")
        if scope["type"] == "http" and secrets.compare_digest(given.encode(), self.key.encode()):
            others = urlencode([pair for pair in query if pair[0] != PARAMETER])
            path = quote(scope["path"].lstrip("/\\"))  # two slashes would name another server
            place = f"/{path}" + (f"?{others}" if others else "")
            cookie = f"{self.cookie}={self.key}; Path=/; HttpOnly; SameSite=Strict"
            await RedirectResponse(place, 303, {"set-cookie": cookie})(scope, receive, send)
        else:
            await PlainTextResponse(CLOSED, 401)(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        """Whether a request has the cookie."""
        from starlette.requests import cookie_parser

        text = next((value for name, value in scope["headers"] if name == b"cookie"), b"").decode("latin-1")
        given = cookie_parser(text).get(self.cookie, "")  # as browsers do; http.cookies stops at the first odd one
        return secrets.compare_digest(given.encode(), self.key.encode())
