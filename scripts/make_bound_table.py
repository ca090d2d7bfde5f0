"""Makes ropeconv/rope/bound/data/R-base.json, -wide and -last: the bound's steps for heads that
rotate wholly.

    python scripts/make_bound_table.py 128 base 16M
    python scripts/make_bound_table.py 128 wide 1M
    python scripts/make_bound_table.py 128 last 1M

The smallest base, the first wide interval and the last violating base never fall with the length,
since a longer length only adds distances. A step ends at the first further distance that violates
somewhere in the window of the step.

Each goes on where the file ends. On one core 128 takes half a minute for base 1M, some minutes for
base 16M, and half an hour for last 1M.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ropeconv.rope.bound.answer import DATA, Step
from ropeconv.rope.bound.smallest import (
    Sweep,
    Walk,
    exact_smallest,
    exp,
    interval_end,
    tail,
    up,
    wide_intervals,
)
from ropeconv.rope.bound.sums import Sums, float64_error, scan, values
from ropeconv.rope.lengths import parse_tokens

START = Step(3, 1.0, math.inf, None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rotary_dim", type=int)
    parser.add_argument("table", choices=["base", "wide", "last"])
    parser.add_argument("through", help="the last length, such as 1M")
    parser.add_argument("--out", type=Path, default=DATA)
    args = parser.parse_args()
    path = args.out / f"{args.rotary_dim}-{args.table}.json"
    sums = Sums(args.rotary_dim)
    through = parse_tokens(args.through)
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
    table = json.loads(path.read_text("utf-8"))
    ends = [float("inf") if end is None else end for end in table["end"]]
    columns = (table["length"], table["begin"], ends, table["distance"])
    return table["through"], [Step(*row) for row in zip(*columns, strict=True)]


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


def base_steps(sums: Sums, through: int, last: Step = START) -> Iterator[Step]:
    """The smallest base and the end of its window, for the lengths from `last.length` to `through`,
    rising.
    """
    sweep = Sweep(sums, last.length)
    length = last.length
    at = math.log(last.begin) * (1 - 1e-12)
    while length <= through:
        sweep.length = length
        sweep.error = float64_error(sums.rotary_dim // 2, length)
        exact, distance = exact_smallest(sweep, at)
        at = float(exact)
        end = interval_end(sums, length, at)
        while True:
            yield Step(length, up(exact.exp()), exp(end), distance)
            new, hole = next_violation(sums, length, at, end, through)
            length = new + 1
            if length > through or hole <= at:
                break
            end = hole
        sweep.pool = np.append(sweep.pool, new)


def wide_steps(sums: Sums, through: int, last: Step = START) -> Iterator[Step]:
    """The first window at least 1 % wide, for the lengths from `last.length` to `through`,
    rising.
    """
    length = last.length
    at = math.log(last.begin) * (1 - 1e-12)
    while length <= through:
        begin, end = next(wide_intervals(sums, length, at))
        yield Step(length, exp(begin), exp(end), None)
        length = next_violation(sums, length, begin, end, through)[0] + 1
        at = begin


def last_steps(sums: Sums, through: int, down_to: int = 3) -> Iterator[Step]:
    """The last base that violates, for the lengths from `through` down to `down_to`, falling."""
    at = tail(sums, through)
    walk = Walk(sums, through, -1)
    while True:
        at, distance = walk.edge(at, 0.0)
        if distance is None or distance < down_to:
            return
        yield Step(distance + 1, exp(at), math.inf, distance)
        walk.shorten(distance)


def next_violation(
    sums: Sums, start: int, begin: float, end: float, through: int
) -> tuple[int, float]:
    """The smallest distance that violates somewhere in a window of bases, and the first ln b at
    which it does.

    sums: of the head. start: the smallest distance to look at, in tokens. begin, end: the window,
    as ln b; its end may be infinite. through: distances below it are looked at. Returns (through,
    end) where none violates.
    """
    size = max(1024, start // 8)
    inv_freq = sums.inv_freq(begin)
    error = float64_error(sums.rotary_dim // 2, through)
    while start < through:
        stop = min(start + size, through)
        distances = scan(inv_freq, sums.unrotated, start, stop, 0.0)
        at_once = distances[values(inv_freq, sums.unrotated, distances) < -error]
        first, hole = (int(at_once[0]), begin) if len(at_once) else (stop, end)
        upto = max(begin, tail(sums, stop)) if math.isinf(end) else end
        walk = Walk(sums, first, 1)
        at = begin
        while at < upto and start < first:
            at, bases, zeros = walk.piece(at, upto, start)
            if len(bases):
                first = int(bases[0])
                hole = float(zeros[0])
                walk.shorten(first)
        if first < stop:
            return first, hole
        start = stop
        size = size * 2
    return through, end


if __name__ == "__main__":
    main()
