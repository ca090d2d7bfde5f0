"""Writes the generated pages, tables and pictures of the documentation.

    python -m scripts.pages                    those that follow from the code, in seconds
    python -m scripts.pages all                also those for which commands and models are run
    python -m scripts.pages transcripts running.md    one step, with its arguments

tests/docs compares the pages with the code.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROM_CODE = {
    "keywords": (),
    "reference": (),
    "tables": (),
    "method_pictures": ("--missing",),
}
"""Steps that need the code alone, with their arguments. The reference shows the keywords."""
RUN = {
    "method_pictures": (),
    "readme_picture": (),
    "transcripts": (),
    "page_pictures": (),
    "conversions": ("--write",),
}
"""Steps that draw anew, start commands, open a browser, or run models in llama.cpp."""


def run_step(name: str, arguments: tuple[str, ...]) -> None:
    """Run one module of this package in a process of its own, which imports what was written."""
    command = [sys.executable, "-W", "ignore", "-m", f"scripts.pages.{name}", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


def main(arguments: list[str]) -> None:
    """Run the steps that a command line names."""
    known = {**FROM_CODE, **RUN}
    if not arguments or arguments == ["all"]:
        for name, given in FROM_CODE.items():
            run_step(name, given)
        if arguments:
            for name, given in RUN.items():
                run_step(name, given)
    elif arguments[0] in known:
        run_step(arguments[0], tuple(arguments[1:]))
    else:
        sys.exit(f"{arguments[0]} is not a step; choose from {', '.join(known)}, or all")


if __name__ == "__main__":
    main(sys.argv[1:])
