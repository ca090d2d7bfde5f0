"""Which tests execute which lines: gathered once per file of tests, and kept until the source or the tests change."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .forks import fork
from .under_pytest import Gather

SETTINGS = """
[run]
parallel = true
data_file = {data}
context = ${{PYTEST_CURRENT_TEST-}}
include = {root}/ropeconv/*
"""


@dataclass
class Tests:
    """The tests of a package: the processor time of each, and the lines of each file that it executes."""

    __test__ = False  # pytest looks for classes with such a name
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def of(self, path: str, line: int, end: int, most: float, more: float) -> list[str]:
        """Tests for a change, the likeliest first: those that execute its lines, then those that execute the file.

        Args:
            path, line, end: The file, and the first and last line that are changed.
            most: No more tests are taken when those that execute the lines take this many seconds of processor time.
            more: The same for those that execute the file only, which matter where a result is kept in memory.
        """
        file = self.lines.get(path, {})
        near = {test for number in range(line, end + 1) for test in file.get(number, ())}
        touching = {test for tests in file.values() for test in tests}
        subject = f"test_{Path(path).stem}.py"
        taken: list[str] = []
        for tests, limit in ((near, most), (touching - near, more), (set(self.seconds) - touching - near, more / 4)):
            total = 0.0
            for test in sorted(tests, key=lambda t: (subject not in t, self.seconds.get(t, 0.0), t)):
                total += self.seconds.get(test, 0.0)
                if total > limit:
                    break
                taken.append(test)
        return taken


def _digest(paths: list[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:20]


def tests_of(root: Path, package: str, kept: Path, jobs: int, only: Sequence[str]) -> Tests:
    """Runs the tests of a package once per file of tests, unless a run over the same source and tests is kept.

    Args:
        root: The copy of the repository.
        package: The package under `ropeconv/`.
        kept: The folder of earlier runs.
        jobs: How many files of tests run at a time.
        only: Parts of the names of files of tests; all of them where it is empty.
    """
    support = [
        *(root / "tests").glob("*.py"),
        *(root / "tests" / "support").glob("*.py"),
        *(root / "tests" / package).rglob("*.py"),
    ]
    support = [path for path in support if not path.name.startswith("test_")]
    source = _digest([*(root / "ropeconv").rglob("*.py"), *(root / "ropeconv").rglob("*.toml"), *support])
    kept.mkdir(parents=True, exist_ok=True)
    files = {
        kept / f"{package}-{path.stem}-{_digest([path])}-{source}.json": path
        for path in sorted((root / "tests" / package).rglob("test_*.py"))
        if not only or any(part in path.name for part in only)
    }
    waiting = [(place, path) for place, path in files.items() if not place.exists()]
    running: dict[int, tuple[Path, Path]] = {}
    while waiting or running:
        if waiting and len(running) < jobs:
            place, path = waiting.pop(0)
            print(f"  which lines {path.relative_to(root)} executes", file=sys.stderr, flush=True)
            work = Path(tempfile.mkdtemp(dir=root.parent))
            running[_started(root, path, work)] = (place, work)
            continue
        process, _ = os.waitpid(-1, 0)
        place, work = running.pop(process)
        place.write_text(json.dumps(_gathered(root, work)), encoding="utf-8")
    together = Tests()
    for place in files:
        found = json.loads(place.read_text())
        together.seconds |= found["seconds"]
        together.failed += found["failed"]
        for file, lines in found["lines"].items():
            known = together.lines.setdefault(file, {})
            for line, tests in lines.items():
                known.setdefault(int(line), []).extend(tests)
    return together


def _started(root: Path, path: Path, work: Path) -> int:
    """Starts a file of tests under coverage; returns the id of the process. work: a folder for what it writes."""
    import coverage

    settings = work / "settings"
    settings.write_text(SETTINGS.format(data=work / "data", root=root))

    def run() -> int:
        import pytest

        measured = coverage.Coverage(config_file=str(settings))
        measured.start()
        arguments = ["-q", "-p", "no:cacheprovider", str(path.relative_to(root))]
        code = pytest.main(arguments, plugins=[Gather(measured, work / "tests.json")])
        measured.stop()
        measured.save()
        return int(code)

    # coverage starts itself in processes that tests start, where this is set
    return fork(root, run, work / "log", COVERAGE_PROCESS_START=str(settings), COVERAGE_CORE="ctrace")


def _gathered(root: Path, work: Path) -> dict[str, Any]:
    """The processor time of each test, the lines that it executed, and which tests failed or were skipped."""
    import coverage

    out = work / "tests.json"
    record = json.loads(out.read_text()) if out.exists() else {"seconds": {}, "passed": {}, "fixtures": {}}
    data = coverage.CoverageData(basename=str(work / "data"))
    for file in sorted(work.glob("data.*")):
        one = coverage.CoverageData(basename=str(file))
        one.read()
        data.update(one)
    sharing: dict[str, list[str]] = {}
    for test, fixtures in record["fixtures"].items():
        for fixture in fixtures:
            sharing.setdefault(f"fixture {fixture}", []).append(test)
    passed = {test for test, good in record["passed"].items() if good}
    lines: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        if not file.startswith(f"{root}/ropeconv/"):
            continue
        known: dict[int, set[str]] = {}
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                # pytest's own name for a test ends in its phase, and a static and a dynamic context are joined by |
                for one in context.split("|"):
                    test = one if one in sharing or one in passed else one.rpartition(" (")[0]
                    known.setdefault(line, set()).update(sharing.get(test, [test]))
        lines[str(Path(file).relative_to(root))] = {
            line: sorted(tests & passed) for line, tests in known.items() if tests & passed
        }
    failed = sorted(test for test in record["passed"] if test not in passed)
    return {"seconds": {t: s for t, s in record["seconds"].items() if t in passed}, "lines": lines, "failed": failed}
