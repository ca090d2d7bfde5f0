"""Runs the fault tests, and prints how many cases of each kind ran and failed.

    python -m scripts.faults [--all | --each N] [OPTIONS OF PYTEST]

With `--all` every fault strikes every command, which takes many hours; with `--each N`, N faults of
each kind strike every command, other ones every day. Else a sample of the commands is struck.
JOBS=4 runs four tests at a time (two by default).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(words: list[str]) -> int:
    """Run the tests, print the table, and return the exit code of pytest."""
    environment = dict(os.environ)
    if words[:1] == ["--all"]:
        environment["ROPECONV_TESTS"] = "all"
        words = words[1:]
    elif words[:1] == ["--each"]:
        environment["ROPECONV_FAULTS_EACH"] = words[1]
        words = words[2:]
    jobs = os.environ.get("JOBS", "2")
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", jobs, "tests/faults", *words]

    with tempfile.NamedTemporaryFile() as tally:
        environment["ROPECONV_FAULTS_TALLY"] = tally.name
        done = subprocess.run(pytest, cwd=ROOT, env=environment, check=False)
        print(table(Path(tally.name).read_text("utf-8")))
    return done.returncode


def table(tally: str) -> str:
    """Return the table of a tally, which has a line `[kind, what, cases, failed]` for each test."""
    cases = Counter[tuple[str, str]]()
    failures = Counter[tuple[str, str]]()
    for line in tally.splitlines():
        kind, what, ran, failed = json.loads(line)
        cases[kind, what] += ran
        failures[kind, what] += failed

    lines = [f"{'fault':<12} {'what':<44} {'cases':>7} {'failed':>7}"]
    for kind, what in sorted(cases):
        ran, failed = cases[kind, what], failures[kind, what]
        lines.append(f"{kind:<12} {what:<44} {ran:>7,} {failed:>7,}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
