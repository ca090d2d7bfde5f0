"""Runs the tests of the core in a copy of the tree without the folders of features.

    python -m scripts.core_tests               without any feature
    python -m scripts.core_tests graphs ui     without these two
    python -m scripts.core_tests -- -n 2 -x    further arguments go to pytest

Tests that use a removed feature are skipped (tests/support/optional.py). Those of the whole
distribution are left out: pages and generated files describe every feature.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ropeconv.rope.features import GROUP, load_features

ROOT = Path(__file__).parents[1]
OF_ALL = (
    "tests/docs",
    "tests/test_additions.py",
    "tests/test_contributing.py",
    "tests/test_features.py",
    "tests/test_keywords.py",
    "tests/test_packages.py",
    "tests/test_reproduction.py",
    "tests/test_results.py",
)
"""Tests that compare all that ropeconv has with its pages, or with its entry points."""


def copy_without(features: list[str], tree: Path) -> None:
    """Copy the files that git knows or would add, but for the folders of some features."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    left_out = {f"{top}/features/{name}" for top in ("ropeconv", "tests") for name in features}
    for name in listed.stdout.decode().strip("\0").split("\0"):
        path = Path(name)
        if "/".join(path.parts[:3]) in left_out or not (ROOT / path).is_file():
            continue
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tree / path)


def run_tests(features: list[str], options: list[str]) -> int:
    """Run the tests without some features, and return the exit status of pytest."""
    required_by = {name for name, one in load_features().items() if {*features} & {*one.requires}}
    removed = sorted({*features, *required_by})
    print(f"without {', '.join(removed)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ropeconv-core-") as folder:
        tree = Path(folder)
        copy_without(removed, tree)
        ignored = [f"--ignore={path}" for path in OF_ALL]
        named = [] if any(word.startswith("tests/") for word in options) else ["tests"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *named, *ignored, *options],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
        )
    return done.returncode


def main(arguments: list[str]) -> int:
    """Run with the arguments of a command line."""
    names, options = arguments, ["-n", "2", "--dist", "worksteal"]
    if "--" in arguments:
        place = arguments.index("--")
        names = arguments[:place]
        options = arguments[place + 1 :]
    unknown = {*names} - load_features().keys()
    if unknown:
        sys.exit(
            f"{', '.join(sorted(unknown))}: not in {GROUP}; choose {', '.join(load_features())}"
        )
    return run_tests(names or [*load_features()], options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
