"""Rules: what visitors of the page may do, and how much of the machine a request may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """What visitors may do.

    public: whether visitors are strangers, as in a Space: models are named by repository or dropped, nothing is written
    to the disk, and the Hub is used with the login of the visitor, or without one. weights: whether what moves weights
    is done. seconds, baking_seconds: that an answer and a bake may take, None for no limit. memory: bytes of a request,
    None for no limit. at_once, waiting: requests that run, and that wait. of_visitor: requests of one visitor that run
    or wait, None for no limit. upload: bytes of a dropped file, None for no limit.
    """

    public: bool = False
    weights: bool = True
    seconds: float | None = 300.0
    baking_seconds: float | None = None
    memory: int | None = None
    at_once: int = 8
    waiting: int | None = None
    of_visitor: int | None = None
    upload: int | None = None

    @property
    def fetched(self) -> int | None:
        """Bytes of a file that is fetched or written: as of an upload where no weights move, else None for no limit."""
        return None if self.weights else self.upload


KEPT = (600, 7200)
"""Seconds between two looks at dropped files, and after which they are removed."""
UPLOADS_OF_ONE, UPLOADS_OF_ALL = 4, 32
"""How many of the largest dropped files there is room for, of one visitor and of all."""
LOCAL = Rules()
"""Of a page on one's own machine."""
SPACE = Rules(
    public=True, weights=False, seconds=60.0, baking_seconds=300.0, memory=4 << 30, at_once=4, waiting=40,
    of_visitor=8, upload=64 << 20,
)  # fmt: skip
"""Of a Space."""
