"""Features: what other packages add to ropeconv, found by their entry points.

A package names a Feature in its pyproject.toml, and is found once it is installed:

    [project.entry-points."ropeconv.features"]
    nimble = "ropeconv_nimble:feature"

Its modules register methods, encodings and measures with the decorators that those of ropeconv use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from .errors import RopeconvError

GROUP = "ropeconv.features"


@dataclass(frozen=True)
class Feature:
    """The parts that a package adds. Every command loads it, so its module imports little."""

    modules: tuple[str, ...] = ()
    """Modules that register methods, encodings and measures when they are imported."""

    encodings: tuple[str, ...] = ()
    """The names of these encodings, which `--encoding` accepts before they are imported."""

    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By the name of a command: the module with its Typer `app`, and a line for `--help`."""

    runtimes: Path | None = None
    """A folder with the TOML rows of runtimes, as ropeconv/runtimes/data has them."""

    families: Path | None = None
    """A folder with the TOML files of model families, as ropeconv/models/data has them."""


@cache
def load_features() -> dict[str, Feature]:
    """Return the features of all installed packages, by name.

    Raises:
        RopeconvError: For one that cannot be imported, or is not a Feature.
    """
    return {entry.name: _load(entry) for entry in entry_points(group=GROUP)}


@cache
def import_features() -> None:
    """Import the modules of all features, which register what they add.

    Raises:
        RopeconvError: As `load_features` does.
    """
    for entry in entry_points(group=GROUP):
        for module in load_features()[entry.name].modules:
            try:
                import_module(module)
            except Exception as problem:
                raise _broken(entry, problem) from problem


def _load(entry: EntryPoint) -> Feature:
    """Return the feature of an entry point."""
    try:
        feature = entry.load()
    except Exception as problem:
        raise _broken(entry, problem) from problem
    if not isinstance(feature, Feature):
        raise _broken(entry, TypeError(f"{entry.value} is not a Feature"))
    return feature


def _broken(entry: EntryPoint, problem: Exception) -> RopeconvError:
    """Return the error for a feature that cannot be used, with the package to change."""
    package = entry.dist.name if entry.dist else entry.module.partition(".")[0]
    return RopeconvError(
        f"the feature {entry.name} of {package} cannot be loaded ({type(problem).__name__}:"
        f" {problem}); update it, or `pip uninstall {package}`"
    )
