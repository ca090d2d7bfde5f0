"""Which cases of a test run: the default takes a part by the day, `./scripts/test --all` every
case.
"""

import datetime
import json
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

ALL = os.environ.get("ROPECONV_TESTS") == "all"
"""Whether every case runs."""
DAY = int(os.environ.setdefault("ROPECONV_TESTS_DAY", str(datetime.date.today().toordinal())))
"""The number of the day, which chooses the cases; processes started by the tests inherit it."""

EACH = int(os.environ.get("ROPECONV_FAULTS_EACH", "0"))
"""How many faults of each kind strike every command, with `python -m scripts.faults --each`; 0 for
a few faults of the commands of the day.
"""


def few(cases: Sequence[T], count: int, seed: int = 0) -> list[T]:
    """Return that many cases in their order, other ones every day; of faults and random inputs,
    which have thousands.

    Args:
        cases: All cases, which `./scripts/test --all` takes.
        count: How many of them run on one day.
        seed: The order in which the days take them.
    """
    if ALL or count >= len(cases):
        return list(cases)
    order = random.Random(seed).sample(range(len(cases)), len(cases))
    chosen = {order[(DAY * count + index) % len(cases)] for index in range(count)}
    return [cases[index] for index in sorted(chosen)]


def sample(cases: Sequence[T], count: int | None = None, seed: int = 0) -> list[T]:
    """Return the cases of the day in their order; a month goes through all of them.

    Args:
        cases: All cases.
        count: How many of them run on one day, at least; a tenth by default.
        seed: The order in which the days take them.
    """
    quota = math.ceil(len(cases) / 10) if count is None else count
    return few(cases, max(quota, math.ceil(len(cases) / 30)), seed)


def pytest_report_header() -> str:
    """Print what repeats this choice of cases."""
    return "every case" if ALL else f"cases of the day: ROPECONV_TESTS_DAY={DAY} repeats them"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked nightly, unless all cases run or single tests are named."""
    if ALL or (config.args and all("::" in argument for argument in config.args)):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def tally(kind: str, subject: str, cases: int, failed: int = 0) -> None:
    """Record how many cases ran, for the table of `scripts/faults.py`.

    Args:
        kind: The kind of fault, such as "kill".
        subject: The command or format.
        cases: How many ran.
        failed: How many of them failed.
    """
    place = os.environ.get("ROPECONV_FAULTS_TALLY")
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps([kind, subject, cases, failed]) + "\n")
