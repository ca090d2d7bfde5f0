"""Draws mutants by seed, runs each against the tests of its own package, and prints what survived."""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .forks import copy_of, fork, import_libraries, kill
from .mutants import File, Mutant, equivalent
from .tests_by_line import Tests, tests_of
from .under_pytest import Chosen

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("rope", "formats", "encode", "runtimes", "receipts", "bake")
LEAST = 0.92
NOT_NOTICED = (0, 5)
"""Exit statuses of pytest: all passed, and none was collected."""
TIMES = (-signal.SIGXCPU, -signal.SIGPROF, -signal.SIGKILL)
LONGEST = 900  # seconds that tests of a mutant may wait for something


@dataclass
class Package:
    """A package under mutation: mutants in the order that the seed gives, and what became of them."""

    name: str
    files: list[File]
    order: list[tuple[File, int]]
    tests: Tests
    seconds: float = 0.0
    killed: int = 0
    by_time: int = 0
    """How many of the killed took too long."""
    equivalent: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.killed + len(self.survivors)

    @property
    def score(self) -> float:
        return self.killed / self.total if self.total else 1.0

    def draw(self) -> Mutant | None:
        """The next mutant that is not known to be equivalent and that compiles."""
        while self.order:
            file, index = self.order.pop()
            mutant = file.mutant(index)
            try:
                compile(mutant.source, mutant.path, "exec")
            except (SyntaxError, ValueError):
                continue
            if equivalent(mutant) is None:
                return mutant
            self.equivalent += 1
        return None


@dataclass
class Running:
    """A mutant under test."""

    package: Package
    mutant: Mutant | None
    tree: Path
    started: float


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILES", help="only mutants of these files of ropeconv/")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn (0)")
    parser.add_argument("--minutes", type=float, default=10, help="how long mutants are run (10), once tests are known")
    parser.add_argument("--count", type=int, default=0, help="end at this number of mutants in each package")
    parser.add_argument("--package", nargs="*", default=[], choices=PACKAGES, help="only these packages")
    parser.add_argument("--tests", nargs="*", default=[], help="only files of tests with such a name: a lower bound")
    parser.add_argument("--list", action="store_true", help="only print the mutants that would be drawn")
    return parser.parse_args(arguments)


def drawn(root: Path, name: str, seed: int, only: list[str]) -> tuple[list[File], list[tuple[File, int]]]:
    """The files of a package, and its mutants in the order of the seed."""
    paths = sorted(str(path.relative_to(root)) for path in (root / "ropeconv" / name).rglob("*.py"))
    files = [File(root, path) for path in paths if not only or any(path.endswith(part) for part in only)]
    order = [(file, index) for file in files for index in range(len(file))]
    random.Random(f"{seed} {name}").shuffle(order)
    return files, order


def start(package: Package, mutant: Mutant | None, tree: Path) -> tuple[int, Running]:
    """Starts the tests of a mutant, or of the source as it is, in a copy."""
    if mutant is None:
        tests = sorted(package.tests.seconds, key=lambda test: package.tests.seconds[test])[:100]
    else:
        lines = mutant.source.count("\n") - (ROOT / mutant.path).read_text().count("\n")
        tests = package.tests.of(mutant.path, mutant.line, mutant.line + max(0, lines), most=60, more=20)
        (tree / mutant.path).write_text(mutant.source)

    limit = int(3 * sum(package.tests.seconds.get(test, 0.0) for test in tests)) + 30

    def run() -> int:
        import pytest

        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # a mutant may loop for ever
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        return int(
            pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files], plugins=[Chosen(tests, package.tests.seconds)])
        )

    process = fork(tree, run, tree.parent / f"{tree.name}.log") if tests else fork(tree, lambda: NOT_NOTICED[0])
    return process, Running(package, mutant, tree, time.monotonic())


def end(running: Running, status: int) -> None:
    """Counts what became of a mutant and restores the copy."""
    package, mutant = running.package, running.mutant
    package.seconds += time.monotonic() - running.started
    code = os.waitstatus_to_exitcode(status)
    failed = code not in NOT_NOTICED
    if mutant is None:
        if failed:
            log = (running.tree.parent / f"{running.tree.name}.log").read_text()[-2000:]
            sys.exit(
                f"{log}\nthe tests of {package.name} fail on the source as it is; nothing can be said about mutants"
            )
        return
    (running.tree / mutant.path).write_bytes((ROOT / mutant.path).read_bytes())
    if failed:
        package.killed += 1
        package.by_time += code in TIMES
        return
    package.survivors.append(mutant)
    print(f"{mutant.path}:{mutant.line} ({mutant.function})\n  - {mutant.original}\n  + {mutant.mutated}", flush=True)


def run_mutants(packages: list[Package], trees: list[Path], minutes: float, count: int) -> None:
    """Runs mutants, of the package that had least time so far, until the time is over."""
    finish = time.monotonic() + 60 * minutes
    controls = list(packages)
    running: dict[int, Running] = {}
    free = list(trees)
    while True:
        while free and time.monotonic() < finish:
            unfinished = [r for r in packages if r.order and not (count and r.total + _under(running, r) >= count)]
            if controls:
                package, mutant = controls.pop(), None
            elif unfinished:
                package = min(unfinished, key=lambda r: (r.seconds + _under(running, r), r.name))
                mutant = package.draw()
                if mutant is None:
                    continue
            else:
                break
            process, work = start(package, mutant, free.pop())
            running[process] = work
        if not running:
            return
        process, status = os.waitpid(-1, os.WNOHANG)
        if process in running:
            free.append(running[process].tree)
            end(running.pop(process), status)
            continue
        for late, work in running.items():
            if time.monotonic() - work.started > LONGEST:
                kill(late)
        time.sleep(0.02)


def _under(running: dict[int, Running], package: Package) -> int:
    return sum(1 for work in running.values() if work.package is package)


def main() -> int:
    """Prints the survivors as they are found, and a line for each package; 1 where one is below the least score."""
    chosen = options()
    names = chosen.package or PACKAGES
    if chosen.list:
        for name in names:
            _, order = drawn(ROOT, name, chosen.seed, chosen.files)
            for file, index in order[::-1][: chosen.count or 10]:
                mutant = file.mutant(index)
                print(f"{mutant.path}:{mutant.line} ({mutant.function})\n  - {mutant.original}\n  + {mutant.mutated}")
        return 0
    import_libraries()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        jobs = int(os.environ.get("JOBS", "2"))
        trees = [copy_of(ROOT, Path(folder) / f"copy{number}") for number in range(jobs)]
        packages = []
        for name in names:
            files, order = drawn(ROOT, name, chosen.seed, chosen.files)
            if files:
                packages.append(
                    Package(name, files, order, tests_of(trees[0], name, ROOT / ".mutants", jobs, chosen.tests))
                )
                for test in packages[-1].tests.failed:
                    print(f"left out, it fails or is skipped on the source as it is: {test}", file=sys.stderr)
        run_mutants(packages, trees, chosen.minutes, chosen.count)
    print(f"\nseed {chosen.seed}\n{'package':<10} killed    of   score  by time  equivalent  mutants in all")
    for package in packages:
        every = sum(len(file) for file in package.files)
        counts = f"{package.by_time:>8} {package.equivalent:>11} {every:>15,}"
        print(f"{package.name:<10} {package.killed:>6} {package.total:>5} {package.score:>7.1%} {counts}")
    return int(any(package.score < LEAST for package in packages))


if __name__ == "__main__":
    sys.exit(main())
