"""Time and memory of `ropeconv apply` as ratios to `cp -r`, on a Llama with the width of 7B."""

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from .checkpoints import checkpoint
from .measure import compare


def main() -> None:
    """Compare `ropeconv apply` with `cp -r`, first in the cache of the disk and then on the disk.

    In the first comparison, neither waits for the disk. In the second, both wait until it has every
    file (fsync).
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=7)
    parser.add_argument("--dir", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["cached", "synced"])
    given = parser.parse_args()

    work = given.dir / "bench-work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    source = work / "model"
    out = work / "out"
    checkpoint(source, given.gigabytes, "llama")

    # the command line of ropeconv, to which options are added, and that of cp
    ropeconv = [sys.executable, "-m", "ropeconv"]
    apply = [*ropeconv, "apply", str(source), "--yarn", "16", "-q", "-o", str(out)]
    copy = ["cp", "-r", str(source), str(out)]
    title = f"{given.gigabytes:g} GB"
    if given.only != "synced":
        cached = {
            "cp -r": copy,
            "apply --no-fsync": [*apply, "--no-fsync"],
            "... --no-check": [*apply, "--no-fsync", "--no-check"],
            "... --link": [*apply, "--no-fsync", "--link"],
            "... folded": [*apply, "--no-fsync", "--encoding", "weights"],
        }
        compare(f"{title}, without waiting for the disk", cached, out, given.rounds)
    if given.only != "cached":
        quoted_out = shlex.quote(str(out))
        copy_and_sync = f"{shlex.join(copy)} && sync {quoted_out}/* {quoted_out}"
        synced = {
            "cp -r, sync": ["sh", "-c", copy_and_sync],
            "apply": apply,
            "apply, folded": [*apply, "--encoding", "weights"],
        }
        compare(f"{title}, with an fsync of every file", synced, out, given.rounds, in_turns=True)
    shutil.rmtree(work)
