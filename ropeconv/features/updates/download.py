"""Files of a release: from an HTTPS address, or from this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from ropeconv.environment import redacted, require
from ropeconv.errors import BadSource, UsageError
from ropeconv.rope.errors import RopeconvError

if TYPE_CHECKING:
    import httpx2 as httpx

CONNECT_SECONDS = 10.0
"""How long a connection may take."""
READ_SECONDS = 60.0
"""How long a server may send no byte."""
WHOLE_SECONDS = 600.0
"""How long a whole file may take: a server could send a byte now and then."""
MOST_REDIRECTS = 5
"""The assets of a release on GitHub are behind one."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def is_url(place: str) -> bool:
    """Whether a place is an address, and not a path."""
    return place.startswith(("http://", "https://"))


def check_place(place: str, pinned: bool) -> None:
    """Refuse an address over which others could change the manifest of the runtime data.

    The manifest has the SHA-256 of all data, so it must come by https, or be known by its own.

    Args:
        place: The place of the manifest.
        pinned: Whether the SHA-256 of the manifest is known.

    Raises:
        UsageError: It is neither HTTPS nor this machine, and nothing is pinned.
    """
    if not place.startswith("http://") or pinned:
        return
    if urlsplit(place).hostname not in LOCAL_HOSTS:
        raise UsageError(
            f"--from {redacted(place)} is not https, so that others could change the data on its"
            " way; use https, or give the SHA-256 of the manifest with --sha256"
        )


def beside(place: str, name: str) -> str:
    """Return the place of a file beside another one.

    Raises:
        BadSource: For a name with folders.
    """
    if not name or "/" in name or "\\" in name or name.startswith("."):
        raise BadSource(f"{redacted(place)} names a file {name!r} that is not beside it")
    if is_url(place):
        return urljoin(place, name)
    return str(Path(place).with_name(name))


def fetch(place: str, limit: int) -> bytes:
    """Return the content of a file, from an address or from this machine.

    Args:
        place: An address or a path.
        limit: The most bytes that it may have.

    Raises:
        RopeconvError: There is no answer, or it is not the file.
    """
    if is_url(place):
        return _download(place, limit)
    try:
        with Path(place).expanduser().open("rb") as file:
            content = file.read(limit + 1)
    except OSError as problem:
        raise BadSource(f"{place} cannot be read ({problem.strerror}); correct --from") from None
    _check_size(place, content, limit)
    return content


def _check_size(place: str, content: bytes | bytearray, limit: int) -> None:
    if len(content) > limit:
        raise BadSource(f"{redacted(place)} is longer than {limit:,} bytes; correct --from")


def _download(url: str, limit: int) -> bytes:
    """Return the bytes at an https or http address.

    Args:
        url: The address.
        limit: The most bytes that it may have.

    Raises:
        RopeconvError: It does not answer, or not with a file of that size.
    """
    require("httpx2", "update-data")
    import httpx2 as httpx  # it has the API of httpx

    # redirections are followed by `_follow`, which refuses those from https to http
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    client = httpx.Client(timeout=timeout, follow_redirects=False)
    try:
        with client:
            return _follow(client, url, limit)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as problem:
        why = str(problem) or type(problem).__name__
        raise RopeconvError(
            f"{redacted(url)} does not answer ({redacted(why)[:300]}); run the command again when"
            " there is a network. ropeconv continues with the data that it has"
        ) from None


def _follow(client: httpx.Client, url: str, limit: int) -> bytes:
    """Return the body of the answer at an address, following redirections.

    Args:
        client: The client, which follows none of its own accord.
        url: The address. A redirection from https to http is refused.
        limit: The most bytes of the body.
    """
    first_url = url  # the address that the user knows, for messages
    deadline = time.monotonic() + WHOLE_SECONDS
    uncompressed = {"Accept-Encoding": "identity"}  # a few compressed bytes could be gigabytes
    for _ in range(MOST_REDIRECTS + 1):
        with client.stream("GET", url, headers=uncompressed) as response:
            # a redirection to another address, which must not be less safe than the first
            if response.is_redirect:
                target = urljoin(url, response.headers.get("Location", ""))
                had_https = first_url.startswith("https://")
                if had_https and not target.startswith("https://"):
                    raise RopeconvError(f"{redacted(first_url)} leads to an address without https")
                url = target
                continue

            if response.status_code != 200:
                raise RopeconvError(
                    f"{redacted(first_url)} answers {response.status_code}; correct --from, or run"
                    " the command again later"
                )

            return _read_body(response, first_url, limit, deadline)
    raise RopeconvError(f"{redacted(first_url)} leads from one address to another without an end")


def _read_body(response: httpx.Response, url: str, limit: int, deadline: float) -> bytes:
    """Return the body of an answer, which is read in parts to notice one without an end.

    Args:
        response: The answer.
        url: The address, for messages.
        limit: The most bytes that it may have.
        deadline: When to give up, by time.monotonic.
    """
    content = bytearray()
    for part in response.iter_raw():
        content += part
        _check_size(url, content, limit)
        if time.monotonic() > deadline:
            raise RopeconvError(
                f"{redacted(url)} takes longer than {WHOLE_SECONDS:.0f} seconds; run the command"
                " again later"
            )
    return bytes(content)
