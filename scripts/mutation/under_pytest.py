"""Plug-ins of pytest: one gathers which lines each test executes, one runs chosen tests in a given order."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def _processor_time() -> float:
    """Seconds of this process and of those that it started and that have ended; other programs do not count."""
    return sum(os.times()[:4])


class Gather:
    """Names coverage's context after the test, and after the fixture where tests share one.

    Processes that a test starts name theirs by PYTEST_CURRENT_TEST, see tests_by_line.
    """

    def __init__(self, coverage: Any, out: Path) -> None:
        self.coverage, self.out = coverage, out
        self.seconds: dict[str, float] = {}
        self.passed: dict[str, bool] = {}
        self.fixtures: dict[str, list[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.fixtures[item.nodeid] = list(getattr(item, "fixturenames", []))
        self.coverage.switch_context(item.nodeid)
        before = _processor_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = _processor_time() - before
            self.coverage.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        self.coverage.switch_context(f"fixture {fixturedef.argname}")
        os.environ["PYTEST_CURRENT_TEST"] = f"fixture {fixturedef.argname}"
        try:
            return (yield)
        finally:
            os.environ["PYTEST_CURRENT_TEST"] = test
            self.coverage.switch_context(test.rpartition(" (")[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        good = report.outcome == "passed" and self.passed.get(report.nodeid, True)
        self.passed[report.nodeid] = good

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(
            json.dumps({"seconds": self.seconds, "passed": self.passed, "fixtures": self.fixtures}), encoding="utf-8"
        )


class Chosen:
    """Runs these tests in this order, and no others; the process ends where one takes far longer than it did before.

    Processor time is counted, so that other programs of the machine end no test.
    """

    def __init__(self, tests: list[str], seconds: dict[str, float]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}
        self.seconds = seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        signal.setitimer(signal.ITIMER_PROF, 30 + 4 * self.seconds.get(item.nodeid, 0.0))
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
