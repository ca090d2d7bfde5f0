"""Limits on what a Hub, or a mirror of it, answers: checked before huggingface_hub uses an answer.

huggingface_hub takes file names in its cache from headers, waits for as long as an answer asks it to, and reads bodies
without an end. https://huggingface.co/docs/huggingface_hub/package_reference/utilities (`set_client_factory`).
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from ..errors import BadSource, RopeconvError, shown

CONNECT, READ = 10.0, 60.0
"""Seconds until a connection is there, and until the next bytes come."""
ANSWER_BYTES, ANSWER_SECONDS = 16 << 20, 60.0
"""Of an answer about a repository, and of any whose length is not given."""
SLOWEST, PATIENCE = 1024, 60.0
"""Bytes per second at least that a download has after so many seconds."""
LONGEST_WAIT = 60
"""Seconds that a busy Hub may ask to wait."""
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
ETAG = re.compile(r'(?:W/)?"?(?!\.+"?$)[^/\\\x00-\x1f"]{1,200}"?')
PART = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
"""A request for a part of a file."""
HEADERS = {"x-repo-commit": COMMIT, "x-linked-etag": ETAG, "etag": ETAG}
"""Headers of files that become names in the cache, and what they may be."""
WAITS = ("retry-after", "ratelimit")
TOO_MANY = 429
"""The status of an answer to one request too many."""
patience = 0
"""How often a request that the Hub is too busy for is sent again: in runs of many units, which would fail otherwise."""

_largest = ContextVar("_largest", default=ANSWER_BYTES)
"""Bytes of a file whose length an answer does not give."""


class BadAnswer(RopeconvError):
    """An answer that is larger, slower or of another form than it may be. The message begins with the verb."""


@contextmanager
def answers(reference: str, size: int = 0) -> Iterator[None]:
    """Around calls to huggingface_hub: sets the limits, and raises BadSource for answers that it does not understand.

    reference: the repository, for the message. size: of the file that is read, as it is listed.
    """
    limit()
    previous = _largest.set(max(ANSWER_BYTES, size))
    try:
        yield
    except BadAnswer as problem:
        raise BadSource(
            f"the Hub's answer about {reference} {problem}; try again later, or check HF_ENDPOINT"
        ) from None
    except (AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as problem:
        of_system = isinstance(problem, OSError) and problem.errno is not None  # such as a full disk
        if of_system or _of_library(type(problem).__module__) or not _in_library(problem.__traceback__):
            raise
        raise BadSource(
            f"the Hub's answer about {reference} cannot be understood ({type(problem).__name__}); check HF_ENDPOINT, "
            "or try again later"
        ) from None
    finally:
        _largest.reset(previous)


def _of_library(module: str) -> bool:
    return module.partition(".")[0] == "huggingface_hub"


def _in_library(trace: TracebackType | None) -> bool:
    while trace is not None:
        if _of_library(str(trace.tb_frame.f_globals.get("__name__"))):
            return True
        trace = trace.tb_next
    return False


def limit() -> None:
    """Sets the limits for all requests of huggingface_hub in this process, which it allows since its version 1.0.

    They are added to the clients that the program around this package makes with a factory of its own.
    """
    import huggingface_hub
    from huggingface_hub.utils import _http

    current = getattr(_http, "_GLOBAL_CLIENT_FACTORY", None)
    if current is not None and not isinstance(current, LimitedClients):
        huggingface_hub.set_client_factory(LimitedClients(current))


class LimitedClients:
    """Makes clients with the limits. make: the factory of clients without them."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self) -> Any:
        """A client of httpx."""
        client = self.make()
        httpx = importlib.import_module(type(client.timeout).__module__.partition(".")[0])
        client.timeout = httpx.Timeout(READ, connect=CONNECT, pool=None)
        client.headers["Accept-Encoding"] = "identity"  # so that what arrives is as large as it is said to be
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [*hooks["response"], _hook(httpx)]}
        client.send = _patient(client.send, httpx.ByteStream)
        return client


def _patient(send: Callable[..., Any], whole: type) -> Callable[..., Any]:
    """A client's `send` that waits as long as a busy Hub asks to. whole: of bodies that can be sent again."""

    def again(request: Any, **options: Any) -> Any:
        for number in range(patience):
            response = send(request, **options)
            if response.status_code != TOO_MANY or not isinstance(request.stream, whole):
                return response
            response.close()
            time.sleep(_asked_to_wait(response.headers, number))
        return send(request, **options)

    return again


def _asked_to_wait(headers: Any, number: int) -> float:
    """Seconds that a busy Hub asks to wait; twice as long each time where it does not say."""
    after = re.fullmatch(r"\d{1,6}", headers.get("retry-after", ""))
    reset = re.search(r"\bt=(\d{1,6})", headers.get("ratelimit", ""))
    found = after[0] if after else reset[1] if reset else 2**number
    return min(float(found), LONGEST_WAIT)


def _hook(httpx: Any) -> Any:
    class Limited(httpx.SyncByteStream):  # type: ignore[misc]
        """A body that ends. stream: the body. most: its bytes. download: a file, and no answer about a repository."""

        def __init__(self, stream: Any, most: int | None, download: bool) -> None:
            self.stream, self.most, self.download = stream, most, download

        def __iter__(self) -> Iterator[bytes]:
            begun, done = time.monotonic(), 0
            for part in self.stream:
                done += len(part)
                seconds = time.monotonic() - begun
                if self.most is not None and done > self.most:
                    raise BadAnswer(f"is longer than {self.most:,} bytes")
                if self.download and seconds > PATIENCE and done < SLOWEST * seconds:
                    raise BadAnswer(f"comes with less than {SLOWEST:,} bytes per second")
                if not self.download and seconds > ANSWER_SECONDS:
                    raise BadAnswer(f"takes longer than {ANSWER_SECONDS:.0f} seconds")
                yield part

        def close(self) -> None:
            self.stream.close()

    def check(response: Any) -> None:
        for name, pattern in HEADERS.items() if "/resolve" in response.url.path else ():
            value = response.headers.get(name)
            if value and not pattern.fullmatch(value):
                raise BadAnswer(f"has {shown(value)} in its header {name}, where a hash or a commit belongs")
        for name in WAITS:
            if any(int(number) > LONGEST_WAIT for number in re.findall(r"\d+", response.headers.get(name, ""))):
                del response.headers[name]
        if response.headers.get("content-encoding", "identity") != "identity":
            raise BadAnswer("is compressed, which was not asked for")
        download = "/api/" not in response.url.path
        known = download and response.headers.get("content-length")
        part = PART.fullmatch(response.request.headers.get("range", ""))
        if download and part and response.is_success:
            most: int | None = int(part[2]) + 1 - int(part[1])
        else:
            most = None if known else _largest.get() if download else ANSWER_BYTES
        response.stream = Limited(response.stream, most, download)

    return check
