"""Searches for inputs that a parser neither reads nor refuses in a sentence, and keeps them.

    python -m scripts.fuzz [PARSER ...] [--seconds 60] [--seed 0] [--keep]

The parsers are those of tests/faults/fuzz/parsers.py, without names all of them. An input that is
found is written into the corpus as `found-...`, and the tests read it from then on. The table says
how many branches of each parser's modules the inputs reach, of all there are.
"""

import argparse
import os
import sys
import time
from hashlib import sha256
from importlib.util import find_spec

from tests.faults.fuzz.guided import CORPUS, Search, corpus, coverage_of, search
from tests.faults.fuzz.parsers import PARSERS

KEPT = 4096
"""Bytes of an input that --keep writes at most."""


def main(words: list[str]) -> int:
    """Search, print the table, and return 1 where something was found."""
    options = parse(words)
    os.environ["HF_HUB_OFFLINE"] = "1"  # an input may name a model on the Hub
    found = 0
    print(f"{'parser':<18} {'inputs':>8} {'found':>6} {'branches':>11}")
    for name in options.parsers or PARSERS:
        needs = PARSERS[name].needs
        if needs and find_spec(needs) is None:
            print(f"{name:<18} {needs} is not installed")
            continue
        done = search(name, options.seconds, options.seed)
        for finding in done.findings:
            (CORPUS / name / finding.name).write_bytes(finding.content)
            print(f"{name}: {finding.problem}", file=sys.stderr)
        if options.keep:
            keep(name, done)
        found += len(done.findings)
        reached = coverage_of(name, [*corpus(name).values(), *done.kept])
        branches = f"{reached.done}/{reached.total}"
        row = f"{name:<18} {done.runs:>8,} {len(done.findings):>6} {branches:>11}"
        print(row, flush=True)
    return 1 if found else 0


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz")
    parser.add_argument("parsers", nargs="*", metavar="PARSER", help=", ".join(PARSERS))
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time for each")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the changes")
    parser.add_argument(
        "--keep", action="store_true", help="also keep the inputs that reach new branches"
    )
    options = parser.parse_args(words)
    unknown = set(options.parsers) - PARSERS.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(PARSERS)}")
    return options


def keep(name: str, done: Search) -> None:
    """Write the inputs that reach branches that the corpus does not reach."""
    known = set(corpus(name).values())
    for content in done.kept:
        if content not in known and len(content) <= KEPT:
            (CORPUS / name / f"kept-{sha256(content).hexdigest()[:12]}").write_bytes(content)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
