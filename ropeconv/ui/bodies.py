"""How much a request to a Space may send, which Gradio takes into memory or onto the disk before it looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FORM = 1 << 20
"""Bytes of a request that is no upload: forms, which are far smaller."""
HEADERS = 1 << 16
"""Bytes of an upload that are not of its file."""
UPLOAD = "/gradio_api/upload"
LARGE = "This is more than this page takes."


class BodyMiddleware:
    """Takes no request with a larger body. app: behind it. upload: bytes of a dropped file."""

    def __init__(self, app: ASGIApp, upload: int) -> None:
        self.app, self.upload = app, upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request by the length that it announces, and ends one that is longer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self.upload + HEADERS if scope["path"].rstrip("/") == UPLOAD else FORM
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not announced.isdigit() or int(announced) > most:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse(LARGE, 413, {"connection": "close"})(scope, receive, send)
            return
        done = 0

        async def counted() -> Message:
            nonlocal done
            message = await receive()
            done += len(message.get("body", b""))
            return message if done <= most else {"type": "http.disconnect"}

        await self.app(scope, counted, send)
