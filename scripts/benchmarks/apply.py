"""Time and memory of `ropeconv apply` as ratios to `cp -r`, on a Llama with the width of 7B."""

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from .checkpoints import checkpoint
from .measure import compare


def main() -> None:
    """Compare without waiting for the disk on both sides, and then with an fsync of every file on
    both sides.
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
    apply = [
        sys.executable,
        "-m",
        "ropeconv",
        "apply",
        str(source),
        "--yarn",
        "16",
        "-q",
        "-o",
        str(out),
    ]
    copy = f"cp -r {shlex.quote(str(source))} {shlex.quote(str(out))}"
    cached = {
        "cp -r": shlex.split(copy),
        "apply --no-fsync": [*apply, "--no-fsync"],
        "... --no-check": [*apply, "--no-fsync", "--no-check"],
        "... --link": [*apply, "--no-fsync", "--link"],
        "... folded": [*apply, "--no-fsync", "--encoding", "weights"],
    }
    synced = {
        "cp -r, sync": [
            "sh",
            "-c",
            f"{copy} && sync {shlex.quote(str(out))}/* {shlex.quote(str(out))}",
        ],
        "apply": apply,
        "apply, folded": [*apply, "--encoding", "weights"],
    }
    title = f"{given.gigabytes:g} GB"
    if given.only != "synced":
        compare(f"{title}, without waiting for the disk", cached, out, given.rounds)
    if given.only != "cached":
        compare(f"{title}, with an fsync of every file", synced, out, given.rounds, in_turns=True)
    shutil.rmtree(work)
