"""Runtimes that are asked while a config is judged, in place of what the table says of them.

`asking` names them for the verdicts inside of its block. The programs that ask them are in
`ropeconv.engines.probes`, above this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .verdict import PlannedConfig, Verdict


class Asking:
    """A runtime that answers questions about configs."""

    name: str
    """As `--runtime` has it."""

    version: str
    """The version that answers."""

    def verdict(self, planned: PlannedConfig) -> Verdict | None:
        """Return its verdict on a config; None where it has none."""
        raise NotImplementedError

    def stop(self) -> None:
        """End what the answers have started."""


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
