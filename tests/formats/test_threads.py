"""How many threads work on a file."""

from __future__ import annotations

import os

import pytest

from ropeconv.formats.threads import cores, threads


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
@pytest.mark.parametrize(("count", "found"), [(1, 1), (3, 3), (8, 8), (64, 8)])
def test_one_for_each_core_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch, count: int, found: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(count)))
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert threads() == found
    assert cores() == count


@pytest.mark.parametrize(("count", "found"), [(None, 1), (2, 2), (128, 8)])
def test_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, count: int | None, found: int) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert threads() == found
