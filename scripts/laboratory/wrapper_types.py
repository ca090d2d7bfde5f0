"""Writes the model types around a text model that transformers has: `scripts/lab wrappers`.

The installed transformers is asked where each of its classes keeps the text model, and the sources
of every version of the lab are read for the first one that has the class.
"""

import json
from pathlib import Path
from typing import Any

from ropeconv.runtimes.runtime import version_key

from .environment import ROOT, wheel_sources
from .key_files import MODEL_TYPE
from .runtimes.transformers import RUNTIME

PLACE = Path(__file__).parents[2] / "ropeconv" / "models" / "wrapper_types.json"
PATHS = ("text_config", "thinker_config.text_config")


def main() -> None:
    """Write the file, with a line per model type."""
    versions = sorted(RUNTIME.versions, key=version_key)
    sources = {
        version: wheel_sources(
            "transformers", version, ROOT / "sources" / f"transformers-{version}"
        )
        for version in versions
    }
    write(record(sources))


def record(sources: dict[str, Path]) -> dict[str, dict[str, str]]:
    """Return the types with their path, first version and text model. sources: by version, the
    oldest first.
    """
    since: dict[str, str] = {}
    for version, root in sources.items():
        for path in (root / "transformers" / "models").glob("*/configuration_*.py"):
            for model_type in MODEL_TYPE.findall(path.read_text("utf-8")):
                since.setdefault(model_type, version)
    return {
        name: {"path": path, "since": since[name]} | ({"text": text} if text else {})
        for name, (path, text) in sorted(installed().items())
        if name in since
    }


def installed() -> dict[str, tuple[str, str]]:
    """Return where the installed transformers keeps the text model of each type, and the only type
    of that if fixed.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    found = {}
    for name in CONFIG_MAPPING_NAMES:
        for path in PATHS:
            inner: Any = CONFIG_MAPPING[name]
            for key in path.split("."):
                inner = getattr(inner, "sub_configs", {}).get(key)
            if inner is not None:
                fixed = "" if inner.__name__ == "AutoConfig" else str(inner.model_type)
                found[name] = (path, fixed)
    return found


def write(types: dict[str, dict[str, str]]) -> None:
    """Write the file of the package."""
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in types.items())
    PLACE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
