"""Writes the config keys that each runtime reads into its file in `ropeconv/runtimes/lab`:
`scripts/lab keys [NAME ...]`.

The sources of every version of the lab are read, none is run. Keys of `harmless_keys.toml` are
left out.
"""

import sys
from functools import cache
from pathlib import Path

import msgspec
import tomli

from ropeconv.models.registry import families
from ropeconv.runtimes.lab_file import LabFile, ReadKeys
from ropeconv.runtimes.runtime import version_key

from . import lab_files
from .environment import ROOT, LabRuntime, wheel_sources
from .key_files import FILES, Model, model_of
from .runtimes import RUNTIMES


class HarmlessKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys that do not change the frequencies: the content of `harmless_keys.toml`."""

    rope: tuple[str, ...]
    """Keys in the RoPE dictionary."""

    config: tuple[str, ...]
    """Keys outside of it."""

    families: dict[str, tuple[str, ...]]
    """Keys with the only families in which they say nothing new."""


@cache
def harmless_keys() -> HarmlessKeys:
    """The keys of `harmless_keys.toml`."""
    text = Path(__file__).with_name("harmless_keys.toml").read_text("utf-8")
    return msgspec.convert(tomli.loads(text), HarmlessKeys)


def main(names: list[str]) -> None:
    """Write the records of the runtimes with these names, by default of all."""
    models = [model_of(family) for family in families()]
    for runtime in RUNTIMES:
        if runtime.name not in (names or FILES):
            continue
        # the sources of all versions are there before the first one is read
        roots = {}
        for version in sorted(runtime.versions, key=version_key):
            folder = ROOT / "sources" / f"{runtime.name}-{version}"
            roots[version] = wheel_sources(runtime.name, version, folder)
        keys = {version: record(runtime.name, root, models) for version, root in roots.items()}
        write(runtime, keys)


def record(runtime: str, root: Path, models: list[Model]) -> ReadKeys:
    """Return the keys that one version of a runtime reads, without those that are harmless.

    Args:
        runtime: Its name.
        root: The folder of its sources.
        models: The families, and the classes by which runtimes know them.
    """
    harmless = harmless_keys()
    rope = set[str]()  # keys of the RoPE dictionary
    config: dict[str, set[str]] = {}  # the families that read a key of the config
    for family, keys in FILES[runtime](root, models):
        if not family:  # what all models share
            rope |= keys.rope
            continue
        for key in keys.top - set(harmless.config):
            if family not in harmless.families.get(key, ()):
                config.setdefault(key, set()).add(family)
    return ReadKeys(
        tuple(sorted(rope - set(harmless.rope))),
        {key: tuple(sorted(families)) for key, families in sorted(config.items())},
    )


def write(runtime: LabRuntime, versions: dict[str, ReadKeys]) -> None:
    """Writes the keys of versions into the file of their runtime."""
    file = lab_files.read(runtime.name) or LabFile(runtime.name, runtime.how)
    lab_files.write(lab_files.replaced(file, keys=versions))


if __name__ == "__main__":
    main(sys.argv[1:])
