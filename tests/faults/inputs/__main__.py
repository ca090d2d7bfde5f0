"""Runs inputs of a format and prints the distinct failures: `python -m tests.faults.inputs NAME [FIRST [LAST]]`."""

from __future__ import annotations

import sys
import time
from collections import Counter

from .formats import load
from .run import run_inputs
from .worker import Outcome


def main() -> None:
    if len(sys.argv) < 2:
        print("formats:", " ".join(load()))
        return
    name, *rest = sys.argv[1:]
    first, last = (int(rest[0]) if rest else 0), (int(rest[1]) if len(rest) > 1 else 300)
    if len(rest) == 1:
        last = first + 1
    start, codes, failures = time.perf_counter(), Counter[int](), dict[tuple[str, str], list[Outcome]]()
    worst = [0.0, 0.0]
    for outcome in run_inputs(name, range(first, last)):
        codes[outcome.code] += 1
        worst = [max(worst[0], outcome.seconds), max(worst[1], outcome.megabytes)]
        if len(rest) == 1:
            print(outcome)
        if outcome.problem:
            kind = outcome.message.split("unexpected ")[-1].split(":")[0][:60] if outcome.where else ""
            problem = outcome.problem if outcome.where else outcome.problem[:12]
            failures.setdefault((f"{problem} {kind}", outcome.where), []).append(outcome)
    for (problem, where), found in sorted(failures.items(), key=lambda item: -len(item[1])):
        example = found[0]
        print(f"{len(found):5} {problem} at {where}; {example.number}: {' '.join(example.command)[:150]}")
        print(f"        {example.message[-300:].strip()}")
    took = time.perf_counter() - start
    print(f"{name}: {sum(codes.values())} commands on {last - first} inputs, exit codes {dict(codes)}, {took:.0f} s;")
    count = sum(map(len, failures.values()))
    print(f"at most {worst[0]:.2f} s and {worst[1]:.0f} MB; {count} failures of {len(failures)} kinds")


main()
