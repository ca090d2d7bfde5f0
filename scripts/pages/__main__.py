"""Writes the generated pages, tables and pictures of the documentation.

    python -m scripts.pages                    those that follow from the code, in seconds
    python -m scripts.pages all                also those for which commands and models are run
    python -m scripts.pages transcripts running.md    one step, with its arguments

tests/docs compares the pages with the code.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROM_CODE = {
    "evidence": (),
    "regret": (),
    "keywords": (),
    "reference": (),
    "tables": (),
    "method_pictures": ("--missing",),
    "decision_charts": (),
}
"""Steps that need the code alone, with their arguments. The reference shows the keywords."""
RUN = {
    "publishers": (),
    "method_pictures": (),
    "notebook": (),
    "readme_picture": (),
    "transcripts": (),
    "page_pictures": (),
    "conversions": ("--write",),
}
"""Steps that plan many models, draw anew, start commands, open a browser, or run llama.cpp."""


def run_step(name: str, arguments: tuple[str, ...]) -> None:
    """Run one module of this package in a process of its own, which imports what was written."""
    command = [sys.executable, "-W", "ignore", "-m", f"scripts.pages.{name}", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


def main() -> None:
    """Run the steps that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = {**FROM_CODE, **RUN}
    parser.add_argument("step", nargs="?", choices=["all", *steps])
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()

    if given.step not in (None, "all"):
        run_step(given.step, tuple(given.arguments))
        return
    for name, arguments in FROM_CODE.items():
        run_step(name, arguments)
    if given.step == "all":
        for name, arguments in RUN.items():
            run_step(name, arguments)


if __name__ == "__main__":
    main()
