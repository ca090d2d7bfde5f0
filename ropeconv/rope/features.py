"""Features: the packages that add to the core of ropeconv, found by their entry points.

Those in `ropeconv.features` and those of other packages register in the same way: a package names
a Feature in its pyproject.toml, and is found once it is installed.

    [project.entry-points."ropeconv.features"]
    nimble = "ropeconv_nimble:feature"

A feature imports the core, and the core imports no feature. Where the core needs one, it calls a
hook by its name, such as `hook("validate_server")`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import RopeconvError

GROUP = "ropeconv.features"

HOOKS = {
    "rank_methods": "--measured",
    "training_step": "a training config",
    "validate_server": "--server",
    "connect_server": "--server",
    "open_spread": "--workers",
    "show_evaluation": "the result of an evaluation",
    "inspect_graphs": "a compiled graph",
    "compare_graphs": "a compiled graph",
    "apply_graphs": "a compiled graph",
    "validate_graph": "a compiled graph",
    "identify_output": "the name of a mistake",
    "derive_family": "a model that no family describes",
}
"""The places where the core, or another feature, calls a feature, and what needs it there.

Each caller says what it passes and expects.
"""


@dataclass(frozen=True)
class Feature:
    """The parts that a package adds. Every command loads it, so its module imports little."""

    modules: tuple[str, ...] = ()
    """Modules that register methods, encodings and measures when they are imported."""

    encodings: tuple[str, ...] = ()
    """The names of these encodings, which `--encoding` accepts before they are imported."""

    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By the name of a command: the module with its Typer `app`, and a line for `--help`."""

    functions: Mapping[str, str] = field(default_factory=dict)
    """By a name that `ropeconv` gets, such as `tune`: the module that has it."""

    hooks: Mapping[str, str] = field(default_factory=dict)
    """By a name of HOOKS: a function as `module:function`."""

    requires: tuple[str, ...] = ()
    """Features without which this one is not loaded."""

    runtimes: Path | None = None
    """A folder with a TOML file for each runtime, as ropeconv/runtimes/data has them."""

    families: Path | None = None
    """A folder with the TOML files of model families, as ropeconv/models/data has them."""


@cache
def load_features() -> dict[str, Feature]:
    """Return the features of all installed packages, by name.

    Raises:
        RopeconvError: For one that cannot be imported, or is not a Feature.
    """
    loaded = {entry.name: _load(entry) for entry in _entries()}
    return {
        name: feature for name, feature in loaded.items() if loaded.keys() >= {*feature.requires}
    }


@cache
def import_features() -> None:
    """Import the modules of all features, which register what they add.

    Raises:
        RopeconvError: As `load_features` does.
    """
    features = load_features()
    for entry in _entries():
        if entry.name not in features:  # one that it requires is not installed
            continue
        for module in features[entry.name].modules:
            try:
                import_module(module)
            except Exception as problem:
                raise _broken(entry, problem) from problem


def find_hook(name: str) -> Callable[..., Any] | None:
    """Return the function of a feature for a place in HOOKS; None where no feature has one."""
    assert name in HOOKS, name
    for feature in load_features().values():
        if name in feature.hooks:
            module, _, function = feature.hooks[name].partition(":")
            found: Callable[..., Any] = getattr(import_module(module), function)
            return found
    return None


def hook(name: str) -> Callable[..., Any]:
    """Return the function of a feature for a place in HOOKS.

    Raises:
        RopeconvError: Where no feature has one.
    """
    found = find_hook(name)
    if found is None:
        raise RopeconvError(
            f"{HOOKS[name]} needs a feature that this installation does not have; pip install"
            " ropeconv again"
        )
    return found


@cache
def _entries() -> tuple[EntryPoint, ...]:
    """Return the entry points: those of ropeconv whose folders are there, then the others."""
    # the entry point of a feature of ropeconv remains where somebody has removed its folder
    own = []
    others = []
    for entry in entry_points(group=GROUP):
        if not entry.module.startswith(f"{GROUP}."):
            others.append(entry)
        elif find_spec(entry.module) is not None:
            own.append(entry)
    return (*own, *others)


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
