"""The bound for every length at once, as the few steps of functions that never fall with the length.

The smallest base, the first wide window and the last violating base never fall, since a longer length only adds
distances. A step ends at the first further distance that violates somewhere in the window of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..lazy import np
from .smallest import Sweep, exp, settled, up
from .sums import Sums, everything, float64_error, scan, values
from .table import Step
from .windows import Walk, tail, wide_windows, window_end

START = Step(3, 1.0, math.inf, None)


def base_steps(sums: Sums, through: int, last: Step = START) -> Iterator[Step]:
    """The smallest base and the end of its window, for the lengths from `last.length` to `through`, rising."""
    sweep, length, at = Sweep(sums, last.length), last.length, math.log(last.begin) * (1 - 1e-12)
    while length <= through:
        sweep.length, sweep.error = length, float64_error(sums.rotary_dim // 2, length)
        exact, distance = settled(sweep, at)
        at = float(exact)
        end = window_end(sums, length, at)
        while True:
            yield Step(length, up(exact.exp()), exp(end), distance)
            new, hole = next_violation(sums, length, at, end, through)
            length = new + 1
            if length > through or hole <= at:
                break
            end = hole
        sweep.pool = np.append(sweep.pool, new)


def wide_steps(sums: Sums, through: int, last: Step = START) -> Iterator[Step]:
    """The first window at least 1 % wide, for the lengths from `last.length` to `through`, rising."""
    length, at = last.length, math.log(last.begin) * (1 - 1e-12)
    while length <= through:
        begin, end = next(wide_windows(sums, length, at))
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


def next_violation(sums: Sums, start: int, begin: float, end: float, through: int) -> tuple[int, float]:
    """The smallest distance that violates somewhere in a window of bases, and the first ln b at which it does.

    sums: of the head. start: the smallest distance to look at, in tokens. begin, end: the window, as ln b; its end may
    be infinite. through: distances below it are looked at. Returns (through, end) where none violates.
    """
    size = max(1024, start // 8)
    inv_freq, error = sums.inv_freq(begin), float64_error(sums.rotary_dim // 2, through)
    while start < through:
        stop = min(start + size, through)
        distances = everything(scan(inv_freq, sums.unrotated, start, stop, 0.0))
        at_once = distances[values(inv_freq, sums.unrotated, distances) < -error]
        first, hole = (int(at_once[0]), begin) if len(at_once) else (stop, end)
        upto = max(begin, tail(sums, stop)) if math.isinf(end) else end
        walk, at = Walk(sums, first, 1), begin
        while at < upto and start < first:
            at, found, zeros = walk.piece(at, upto, start)
            if len(found):
                first, hole = int(found[0]), float(zeros[0])
                walk.shorten(first)
        if first < stop:
            return first, hole
        start, size = stop, size * 2
    return through, end
