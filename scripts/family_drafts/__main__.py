"""Says of every model type of the installed transformers that rotates what ropeconv says about it.

`scripts/families --check` lists the model types that rotate: known, with their family; refused, with the reason; or
unknown, and then it exits with 1. `scripts/families --unknown` prints the names of the unknown ones alone.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from .walk import walk


def main() -> int:
    """Answers the command line. Returns 1 where `--check` finds a model type that is unknown."""
    parser = argparse.ArgumentParser(prog="scripts/families", description=__doc__)
    parser.add_argument("--check", action="store_true", help="list every model type that rotates")
    parser.add_argument("--unknown", action="store_true", help="print the names of those that are unknown")
    given = parser.parse_args()
    found = [one for one in walk() if one.rotates]
    unknown = [one.name for one in found if one.state == "unknown"]
    if given.unknown:
        sys.stdout.write("".join(f"{name}\n" for name in unknown))
        return 0
    for one in found:
        sys.stdout.write(f"{one.name:40} {one.state:8} {one.detail}\n")
    counts = Counter(one.state for one in found)
    sys.stdout.write(f"{len(found)} rotate: " + ", ".join(f"{counts[key]} {key}" for key in sorted(counts)) + "\n")
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
