"""transformers: the model of every config is built and run, in each version at which something
changes.
"""

import sys
from importlib import metadata
from pathlib import Path

from ..environment import Environment, LabRuntime, installed

VERSIONS = (
    "4.45.2",
    "4.46.3",
    "4.48.3",
    "4.50.3",
    "4.51.3",
    "4.53.3",
    "4.54.1",
    "4.55.4",
    "4.57.6",
    "5.0.0",
    "5.3.0",
    "5.4.0",
    "5.5.4",
    "5.8.1",
    "5.9.0",
    "5.12.1",
    "5.13.1",
    "5.14.1",
    "5.15.1",
    "5.17.0",
    "5.18.0",
    "5.19.0",
    "5.20.2",
    "5.21.1",
    "5.22.2",
    "5.23.0",
    "5.24.0",
)


def install(version: str, folder: Path) -> Environment:
    """transformers with the packages it asks for; torch is the project's, and so is the version
    that is installed.
    """
    if metadata.version("transformers") == version:
        return Environment(Path(sys.executable))
    return Environment(Path(sys.executable), (installed(folder, f"transformers=={version}"),))


RUNTIME = LabRuntime(
    name="transformers",
    program="ask_transformers",
    versions=VERSIONS,
    quick=("4.48.3", "5.0.0", "5.23.0"),
    install=install,
    how="the model is built and run; cos and sin that its layers rotate with",
)
