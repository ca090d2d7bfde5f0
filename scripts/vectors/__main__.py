"""Build packets for all methods and architectures, and run them in engines.

    python -m scripts.vectors build FOLDER                       all packets, each in FAMILY/METHOD
    python -m scripts.vectors build FOLDER --methods yarn:8 --families llama,qwen3
    python -m scripts.vectors run FOLDER mlx-lm --python /tmp/mlx/bin/python

`run` writes docs/evidence/vectors.json, from which `python -m scripts.pages tables` makes the table
of docs/engines.md. Each engine runs in the environment of the Python that is named, which needs the
engine and numpy.
"""

import argparse
import sys
from pathlib import Path

from .building import build_all, family_names, method_names
from .running import ENGINES, run_engine


def main() -> None:
    """Run the command that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    build = commands.add_parser("build", help="write packets")
    build.add_argument("folder", type=Path)
    build.add_argument("--families", default=",".join(family_names()))
    build.add_argument("--methods", default=",".join(method_names()))

    run = commands.add_parser("run", help="run packets in an engine")
    run.add_argument("folder", type=Path)
    run.add_argument("engine", choices=ENGINES)
    run.add_argument("--python", default=sys.executable, help="the Python that has the engine")

    run.add_argument("--graphs", type=Path, help="keep exported graphs there, for other engines")

    given = parser.parse_args()
    if given.command == "build":
        build_all(given.folder, given.families.split(","), given.methods.split(","))
    else:
        run_engine(given.folder, given.engine, given.python, given.graphs)


if __name__ == "__main__":
    main()
