"""CPU seconds of commands that do little, which people notice as the time until the command line
answers.
"""

import argparse
import compileall
import sys
from pathlib import Path

from .measure import ROOT, cost

CONFIG = Path("tests/data/configs/Qwen--Qwen3-8B.json")
COMMANDS: dict[str, tuple[list[str], float]] = {
    "--help": (["--help"], 0.35),
    "apply --help": (["apply", "--help"], 0.7),
    "inspect CONFIG": (["inspect", str(CONFIG)], 0.7),
    "apply CONFIG --yarn 4 --dry-run": (["apply", str(CONFIG), "--yarn", "4", "--dry-run"], 1.2),
}
"""The words of each command, and the seconds that it should stay below on an idle machine."""


def main() -> None:
    """Print the least CPU of some runs: other programs on the machine only ever add to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    compileall.compile_dir(ROOT / "ropeconv", quiet=2)
    print(f"{'command':34} {'CPU s':>7} {'aim':>7}")
    for name, (words, aim) in COMMANDS.items():
        runs = [
            cost([sys.executable, "-m", "ropeconv", *words], cwd=ROOT) for _ in range(given.rounds)
        ]
        least = min(run.processor for run in runs)
        print(f"{name:34} {least:7.2f} {aim:7.2f}{'  above' if least > aim else ''}", flush=True)
