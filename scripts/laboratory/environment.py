"""Installs runtimes for the lab: into folders of their own below .lab, never into the environment
of the project.
"""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".lab"
PROGRAMS = Path(__file__).parent / "programs"
PLATFORMS = ("2_28", "2_31", "2_34", "2_35")


class NotInstallable(Exception):
    """A runtime cannot be installed on this machine; the message is a sentence with what it
    needs.
    """


@dataclass(frozen=True)
class Environment:
    """How a program is run."""

    python: Path
    """The interpreter."""

    path: tuple[Path, ...] = ()
    """Folders for PYTHONPATH."""

    variables: tuple[tuple[str, str], ...] = ()
    """Names and values of further variables of the environment."""


@dataclass(frozen=True)
class LabRuntime:
    """A runtime that the lab executes.

    It is asked by the same programs as the installed one of a user, by one protocol
    (`ropeconv/engines/probes/programs`).
    """

    name: str
    """As in `runtimes/data`."""

    program: str
    """The module that asks it: of ropeconv, or for runtimes that it cannot ask, of `programs`."""

    versions: tuple[str, ...]
    """Those that are recorded."""

    quick: tuple[str, ...]
    """Those that `scripts/test` executes again."""

    install: Callable[[str, Path], Environment]
    """Makes the environment of a version in a folder; it may find one that is complete."""

    how: str
    """A sentence on what is executed, for the records."""


def pip(*arguments: str | Path) -> None:
    """Runs pip of this interpreter. Raises NotInstallable with the end of its output."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        *map(str, arguments),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotInstallable(f"pip {arguments[0]} failed: {done.stderr.strip().splitlines()[-1:]}")


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills, once; a run that was killed starts over."""
    done = folder / ".done"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make(folder)
        done.touch()
    return folder


def wheel_sources(package: str, version: str, folder: Path, python: str = "3.12") -> Path:
    """Return a folder with the Python files of a wheel for Linux, without its compiled parts.

    Args:
        package: The package.
        version: Its version.
        folder: The folder. A folder that an earlier run has made is used again.
        python: The version of Python for which the wheel is.
    """
    tags = [f"manylinux_{tag}_x86_64" for tag in PLATFORMS]
    tags += ["manylinux2014_x86_64", "manylinux1_x86_64", "any"]
    platforms = [f"--platform={tag}" for tag in tags]

    def make(target: Path) -> None:
        """Download the wheel into a folder, and unpack it there."""
        options = ["--no-deps", "--only-binary=:all:", *platforms, f"--python-version={python}"]
        pip("download", *options, "-d", target, f"{package}=={version}")
        for archive in target.glob("*.whl"):
            with zipfile.ZipFile(archive) as content:
                names = content.namelist()
                wanted = [name for name in names if not name.endswith((".so", ".cubin"))]
                content.extractall(target, wanted)
            archive.unlink()

    return once(folder, make)


def installed(folder: Path, *packages: str, requirements: bool = True) -> Path:
    """A folder with packages, for PYTHONPATH. requirements: with the packages that these ask
    for.
    """
    options = ("--no-compile",) if requirements else ("--no-compile", "--no-deps")
    return once(folder, lambda target: pip("install", *options, "--target", target, *packages))
