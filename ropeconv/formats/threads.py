"""How many threads work on the data of a file."""

from __future__ import annotations

import os

MOST = 8
"""More are not faster where each of them reads and writes."""


def threads() -> int:
    """One for each processor core that this process may use, 8 at most."""
    if hasattr(os, "sched_getaffinity"):  # a batch system may give a job some cores of a machine
        return min(MOST, len(os.sched_getaffinity(0)))
    return min(MOST, os.cpu_count() or 1)
