"""How many processor cores there are for this process, and how many threads work on the data of a file."""

from __future__ import annotations

import os

MOST = 8
"""More are not faster where each of them reads and writes."""


def cores() -> int:
    """Those that this process may use: a batch system may give a job some cores of a machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """One for each processor core that this process may use, 8 at most."""
    return min(MOST, cores())
