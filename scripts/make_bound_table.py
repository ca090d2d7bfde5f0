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
    surely_fitting_from,
    up,
    wide_intervals,
)
from ropeconv.rope.bound.sums import Sums, float64_error, scan, sums_in_float64
from ropeconv.rope.lengths import parse_tokens

START = Step(3, 1.0, math.inf, None)


def main() -> None:
    """Extend a table to a length; a run continues from what an earlier one has written."""
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

    # the last step may go on beyond the length that was reached, so it is computed again
    last = rows.pop() if rows else START
    make_steps = base_steps if args.table == "base" else wide_steps
    saved = time.monotonic()
    for step in make_steps(sums, through, last):
        rows.append(step)
        if time.monotonic() - saved > 30:
            saved = time.monotonic()
            write(path, step.length, rows)
    write(path, through, rows)


def read(path: Path) -> tuple[int, list[Step]]:
    """Return the length that an earlier run has reached, and its steps."""
    if not path.exists():
        return 3, []
    table = json.loads(path.read_text("utf-8"))
    ends = [float("inf") if end is None else end for end in table["end"]]
    columns = (table["length"], table["begin"], ends, table["distance"])
    return table["through"], [Step(*row) for row in zip(*columns, strict=True)]


def write(path: Path, through: int, rows: list[Step]) -> None:
    """Write a table as JSON, with a line for each column. An infinite end is null."""
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
    """Yield the smallest base for each length at which it changes, and where its window ends.

    With the smallest base of a length, no sum over the cosines of a shorter distance is negative.
    The bases from it on that have this property too are its window. A longer length takes
    something off the end of the window, until nothing is left and the smallest base is another one.

    Args:
        sums: The sums of the head.
        through: The last length, in tokens.
        last: The step with which to begin.
    """
    sweep = Sweep(sums, last.length)
    length = last.length
    log_base = math.log(last.begin) * (1 - 1e-12)
    while length <= through:
        sweep.length = length
        sweep.error = float64_error(sums.rotary_dim // 2, length)
        exact, distance = exact_smallest(sweep, log_base)
        log_base = float(exact)
        end = interval_end(sums, length, log_base)
        while True:
            yield Step(length, up(exact.exp()), exp(end), distance)
            violating, first_log_base = next_violation(sums, length, log_base, end, through)
            length = violating + 1
            is_window_empty = first_log_base <= log_base
            if length > through or is_window_empty:
                break
            end = first_log_base  # the window is shorter, with the same smallest base
        sweep.pool = np.append(sweep.pool, violating)


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
    at = surely_fitting_from(sums, through)
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
    """Return the smallest distance whose sum is negative in a window of bases, and the first ln b.

    Args:
        sums: The sums of the head.
        start: The smallest distance to test, in tokens.
        begin: The ln b at which the window begins.
        end: The ln b at which it ends; may be infinite.
        through: Distances below it are tested.

    Returns:
        The distance, and the first ln b at which its sum is negative; (through, end) where there is
        none.
    """
    size = max(1024, start // 8)
    inv_freq = sums.inv_freq(begin)
    error = float64_error(sums.rotary_dim // 2, through)
    while start < through:
        # a block of distances, [start, stop)
        stop = min(start + size, through)

        # those that are negative at the first base already
        distances = scan(inv_freq, sums.unrotated, start, stop, 0.0)
        is_negative = sums_in_float64(inv_freq, sums.unrotated, distances) < -error
        negative_at_begin = distances[is_negative]
        first = stop
        first_log_base = end
        if len(negative_at_begin):
            first = int(negative_at_begin[0])
            first_log_base = begin

        # smaller ones that are negative further on; beyond the tail no sum of the block is
        last_log_base = end
        if math.isinf(end):
            last_log_base = max(begin, surely_fitting_from(sums, stop))
        walk = Walk(sums, first, 1)
        log_base = begin
        while log_base < last_log_base and start < first:
            log_base, violating, zeros = walk.piece(log_base, last_log_base, start)
            if len(violating):
                first = int(violating[0])
                first_log_base = float(zeros[0])
                walk.shorten(first)
        if first < stop:
            return first, first_log_base
        start = stop
        size = size * 2
    return through, end


if __name__ == "__main__":
    main()
