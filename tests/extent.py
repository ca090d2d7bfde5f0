"""How many of the cases of a test run, and the numbers that `scripts/faults` prints."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ALL = os.environ.get("ROPECONV_TESTS") == "all"
"""Whether every case runs, and not a sample."""


def sample(cases: Sequence[T], count: int, seed: int = 0) -> list[T]:
    """`count` of the cases, the same for the same seed and in their order; with ROPECONV_TESTS=all every one."""
    if ALL or count >= len(cases):
        return list(cases)
    chosen = random.Random(seed).sample(range(len(cases)), count)
    return [cases[index] for index in sorted(chosen)]


def tally(kind: str, what: str, cases: int, failed: int = 0) -> None:
    """Records how many cases ran, for the table of `scripts/faults`.

    kind: of fault, such as "kill". what: the command or format. cases: that ran. failed: of these.
    """
    place = os.environ.get("ROPECONV_FAULTS_TALLY")
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps([kind, what, cases, failed]) + "\n")
