"""Runtimes that are asked while a config is judged, in place of what the table says of them.

`asking` names them for the verdicts inside of its block. The programs that ask them are in
`ropeconv.engines.probes`, above this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from .verdict import Asking

_ASKED: ContextVar[tuple[Asking, ...]] = ContextVar("asked", default=())


def asked_runtimes() -> tuple[Asking, ...]:
    """Return the runtimes that are asked now; without `asking` there are none."""
    return _ASKED.get()


@contextmanager
def asking(runtimes: Sequence[Asking]) -> Iterator[None]:
    """Ask runtimes inside of the block, and end their processes behind it."""
    token = _ASKED.set(tuple(runtimes))
    try:
        yield
    finally:
        _ASKED.reset(token)
        for runtime in runtimes:
            runtime.stop()
