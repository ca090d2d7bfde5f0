"""How much requests to a Space may send, which Gradio takes into memory or onto the disk before it looks at it."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FORM = 1 << 20
"""Bytes of a request that is not an upload: forms, which are far smaller."""
HEADERS = 1 << 16
"""Bytes of an upload that are not of its file."""
UPLOAD = "/gradio_api/upload"
DISCARDED = 256 << 20
"""Bytes of a refused body that are read and thrown away."""
LARGE = "This is more than this page takes."
FULL = "Too many files were dropped on this page in the last two hours; try again later, or run `ropeconv ui` yourself."


def visitor_of(scope: Scope) -> str:
    """Return the network address that a request comes from, as the proxy of the Hub states it; of IPv6 the network."""
    stated = next((value for name, value in scope["headers"] if name == b"x-forwarded-for"), b"").decode("latin-1")
    text = stated.partition(",")[0].strip() or (scope.get("client") or ("",))[0]
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
        self._kept = [one for one in self._kept if now - one.since < self.seconds]
        upload = Upload(visitor, max(size, HEADERS), now)
        of_one = sum(one.size for one in self._kept if one.visitor == visitor)
        if of_one + upload.size > self.of_one or sum(one.size for one in self._kept) + upload.size > self.of_all:
            return None
        self._kept.append(upload)
        return upload


@dataclass
class Upload:
    """A request with dropped files. size: its bytes; at least some thousand, since a small file takes room too."""

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
        most = self.upload + HEADERS if is_upload else FORM
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
                upload.size = max(min(done, most), HEADERS)


async def _discard(receive: Receive) -> None:
    """Read a refused body: a client may lose the answer of a server that closes the connection while it sends."""
    left = DISCARDED
    while left > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return
        left -= len(message.get("body", b""))
