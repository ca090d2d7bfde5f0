"""Draw mutants of a package by a seed, and print those that the tests do not notice, with
mutmut.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".mutants"
SAME = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text("utf-8"))["same"]
CALLERS = {
    "rope": (
        "models",
        "runtimes",
        "convert",
        "inspection",
        "bake",
        "features/evaluation/test_asked.py",
    ),
    "formats": ("models", "convert", "inspection", "bake"),
    "runtimes": ("convert", "inspection", "bake", "hub"),
    "convert": ("models", "runtimes", "bake", "validate"),
}
"""Packages that call another one. Their tests run on the mutants that the tests of that package do
not notice.
"""


def copied(target: str, package: str) -> Path:
    """A copy of the working tree whose settings name what is mutated."""
    place = PLACE / package
    shutil.rmtree(place, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    configure(place, "only_mutate", target)
    return place


def configure(place: Path, key: str, *values: str) -> None:
    """Replace a list in the settings of mutmut."""
    settings = (place / "pyproject.toml").read_text("utf-8")
    settings = re.sub(
        rf"^{key} = \[.*?\]", f"{key} = {json.dumps(values)}", settings, count=1, flags=re.MULTILINE
    )
    (place / "pyproject.toml").write_text(settings, "utf-8")


def mutmut(place: Path, *words: str) -> str:
    """The output of a command of mutmut; on failure its end is in the error."""
    command = [sys.executable, "-m", "mutmut", *words]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode and "nothing matches" not in done.stderr:
        raise SystemExit(
            f"{' '.join(words[:2])} failed in {place}:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def statuses(place: Path) -> dict[str, str]:
    """The status of every mutant by its name."""
    return dict(
        re.findall(r"^ +(\S+): (.+)$", mutmut(place, "results", "--all", "true"), re.MULTILINE)
    )


def is_same(name: str, diff: str) -> bool:
    """Whether a mutant is known to compute what the source computes."""
    old, new = (
        "\n".join(re.findall(rf"^{re.escape(sign)}(?!{re.escape(sign)}) *(.*)$", diff, re.M))
        for sign in "-+"
    )
    rows = [row for row in SAME if row["in"] in name]
    return any(row["old"] in old and row.get("new", "") in new for row in rows)


def run(place: Path, packages: tuple[str, ...], *names: str) -> list[str]:
    """Run the tests of these packages on the mutants with these names, and return the names that
    none notices.
    """
    configure(
        place, "pytest_add_cli_args_test_selection", *(f"tests/{package}" for package in packages)
    )
    mutmut(place, "run", "--max-children", os.environ.get("JOBS", "2"), *names)
    by_name = statuses(place)
    return [name for name in names if by_name.get(name) in ("survived", "no tests")]


def examine(target: str, seed: int, count: int) -> None:
    """Print the mutants of a package that no test notices, and the share of those that one does.

    Args:
        target: The name of a package, or the path of one of its files.
        seed: Which mutants are drawn.
        count: How many of them.
    """
    if target.endswith(".py"):
        package = Path(target).parts[1]
        mutated = target
    else:
        package = target
        mutated = f"ropeconv/{package}/*"
    place = copied(mutated, package)
    # this makes the mutants, and finds out which tests call which functions
    run(place, (package,), "none")
    names = sorted(statuses(place))
    drawn = random.Random(f"{seed} {target}").sample(names, min(count, len(names)))

    # first by the tests of the package, and what is left by those of packages that call it
    left = run(place, (package,), *drawn)
    noticed = len(drawn) - len(left)
    print(
        f"{target}: the tests of the package notice {noticed} of {len(drawn)} mutants", flush=True
    )
    if left and package in CALLERS:
        left = run(place, CALLERS[package], *left)

    # no test can notice a mutant that computes the same
    same = []
    for name in left:
        diff = mutmut(place, "show", name)
        if is_same(name, diff):
            same.append(name)
        else:
            print(f"{diff.strip()}\n")
    noticed = len(drawn) - len(left)
    print(
        f"{target}: {noticed} of {len(drawn) - len(same)} mutants noticed with seed"
        f" {seed}; {len(names)} in all, {len(same)} drawn compute the same"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__)
    parser.add_argument(
        "what",
        nargs="*",
        default=["rope", "formats"],
        help="packages of ropeconv, or files of them",
    )
    parser.add_argument("--seed", type=int, default=0, help="chooses the mutants (0)")
    parser.add_argument("--count", type=int, default=40, help="mutants of each (40)")
    given = parser.parse_args()
    for target in given.what:
        examine(target, given.seed, given.count)


if __name__ == "__main__":
    main()
