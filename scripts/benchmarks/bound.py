"""The bound, against the algorithm of the post (https://kexue.fm/archives/10122) in numpy, on the
same machine.

That one looks for the first base of a grid with no negative sum, five grids each ten times as fine
as the one before: 111,110 passes over all distances in float32. One pass is timed here, and
multiplied.
"""

import statistics
import subprocess
import sys

import numpy as np

from ropeconv.rope.bound.answer import bound
from ropeconv.rope.bound.reach import reach
from ropeconv.rope.bound.smallest import smallest_log_base
from ropeconv.rope.bound.sums import Sums

from .measure import seconds

LENGTHS = (1 << 12, 1 << 17, 1 << 20)
PASSES = sum(10**digits for digits in range(1, 6))
LOOK_UP = """
import time, numpy
from ropeconv.rope.bound.answer import bound
begin = time.perf_counter()
bound(131072, 128, 128)
print(time.perf_counter() - begin)
"""


def post(length: int, base: float) -> float:
    """The smallest sum at one base, as the post computes it."""
    inv_freq = (base ** (-np.arange(0, 128, 2) / 128)).astype(np.float32)
    lowest = np.inf
    for start in range(0, length, 1 << 16):
        distances = np.arange(start, min(start + (1 << 16), length), dtype=np.float32)
        lowest = min(
            lowest, float(np.cos(np.multiply.outer(distances, inv_freq)).sum(axis=1).min())
        )
    return lowest


def main() -> None:
    """Print the times of both algorithms, of a look-up in the table, and of a model's reach."""
    print("from nothing, 128 dimensions: seconds, the post's extrapolated, ratio")
    for length in LENGTHS:
        ours = seconds(smallest_log_base, Sums(128), length)
        # one pass over all distances, which the post does PASSES times
        base = 1e5 * length
        one_pass = statistics.median(seconds(post, length, base) for _ in range(3))
        published = one_pass * PASSES
        print(f"{length:>10,} {ours:>8.2f} {published:>12,.0f} {published / ours:>8,.0f} x")

    # in a new process, which has not read the table yet
    look_up = [sys.executable, "-c", LOOK_UP]
    look_up_times = []
    for _ in range(3):
        done = subprocess.run(look_up, capture_output=True, text=True, check=True)
        look_up_times.append(float(done.stdout))
    milliseconds = 1e3 * statistics.median(look_up_times)
    print(f"from the table, first look-up of a process: {milliseconds:.1f} ms")

    random_frequencies = np.exp(-np.sort(np.random.default_rng(0).uniform(0, 12, 64)))
    for name, inv_freq in (("random", random_frequencies), ("theta 5e9", bound_vector())):
        time_taken = seconds(reach, inv_freq, 0.0, 10_000_000)
        print(f"reach up to 10M tokens, 64 frequencies ({name}): {time_taken:.2f} s")


def bound_vector() -> np.ndarray:
    """Frequencies without a violation up to 1M tokens, so that the search has to go on."""
    base = bound(1 << 20, 128, 128, windows=False).base * 80
    return np.asarray(base ** (-np.arange(0, 128, 2) / 128))
