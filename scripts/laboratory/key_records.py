"""Writes the config keys that each runtime reads as `ropeconv/runtimes/keys/*.json`:
`scripts/lab keys [NAME ...]`.

The sources of every version of the lab are read, none is run. Keys of `understood_keys.toml` are
left out.
"""

import json
import sys
from pathlib import Path
from typing import Any

from ropeconv.models.registry import families
from ropeconv.runtimes.evidence import understood
from ropeconv.runtimes.runtime import version_key

from .environment import ROOT, wheel_sources
from .key_files import FILES, Model, model_of
from .runtimes import RUNTIMES

KEYS = Path(__file__).parents[2] / "ropeconv" / "runtimes" / "keys"


def main(names: list[str]) -> None:
    """Writes the records of the runtimes with these names, by default of all."""
    models = [model_of(family) for family in families()]
    for runtime in RUNTIMES:
        if runtime.name in (names or FILES):
            versions = sorted(runtime.versions, key=version_key)
            roots = {
                release: wheel_sources(
                    runtime.name, release, ROOT / "sources" / f"{runtime.name}-{release}"
                )
                for release in versions
            }
            write(
                runtime.name,
                {version: record(runtime.name, root, models) for version, root in roots.items()},
            )


def record(runtime: str, root: Path, models: list[Model]) -> dict[str, Any]:
    """The keys that one version reads and that are not understood. root: the folder of its
    sources.
    """
    known = understood()
    rope = set[str]()
    config: dict[str, set[str]] = {}
    for family, keys in FILES[runtime](root, models):
        if not family:
            rope |= keys.rope
            continue
        for key in keys.top - set(known.config):
            config.setdefault(key, set()).add(family)
    return {
        "rope": sorted(rope - set(known.rope)),
        "config": {key: sorted(families) for key, families in sorted(config.items())},
    }


def write(runtime: str, versions: dict[str, Any]) -> None:
    """Writes the file of a runtime, with a line per version."""
    lines = (f"{json.dumps(version)}: {json.dumps(keys)}" for version, keys in versions.items())
    (KEYS / f"{runtime}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
