"""Makes ropeconv/rope/bound/data/R-base.json, -wide and -last: the bound's steps for heads that rotate wholly.

    python scripts/make_bound_table.py 128 base 16M
    python scripts/make_bound_table.py 128 wide 1M
    python scripts/make_bound_table.py 128 last 1M

Each goes on where the file ends. On one core 128 takes half a minute for base 1M, some minutes for base 16M, and half
an hour for last 1M.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ropeconv.rope.bound.answer import DATA, START, Step, base_steps, last_steps, wide_steps
from ropeconv.rope.bound.sums import Sums
from ropeconv.rope.lengths import parse_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rotary_dim", type=int)
    parser.add_argument("table", choices=["base", "wide", "last"])
    parser.add_argument("through", help="the last length, such as 1M")
    parser.add_argument("--out", type=Path, default=DATA)
    args = parser.parse_args()
    path = args.out / f"{args.rotary_dim}-{args.table}.json"
    sums, through = Sums(args.rotary_dim), parse_tokens(args.through)
    reached, rows = read(path)
    if through <= reached:
        return
    if args.table == "last":
        write(path, through, rows + sorted(last_steps(sums, through, down_to=reached)))
        return
    last = rows.pop() if rows else START
    saved = time.monotonic()
    for step in (base_steps if args.table == "base" else wide_steps)(sums, through, last):
        rows.append(step)
        if time.monotonic() - saved > 30:
            saved = time.monotonic()
            write(path, step.length, rows)
    write(path, through, rows)


def read(path: Path) -> tuple[int, list[Step]]:
    """What an earlier run has reached."""
    if not path.exists():
        return 3, []
    found = json.loads(path.read_text("utf-8"))
    ends = [float("inf") if end is None else end for end in found["end"]]
    columns = (found["length"], found["begin"], ends, found["distance"])
    return found["through"], [Step(*row) for row in zip(*columns, strict=True)]


def write(path: Path, through: int, rows: list[Step]) -> None:
    """One line per column."""
    columns = {
        "through": through,
        "length": [row.length for row in rows],
        "begin": [row.begin for row in rows],
        "end": [None if row.end == float("inf") else row.end for row in rows],
        "distance": [row.distance for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in columns.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
