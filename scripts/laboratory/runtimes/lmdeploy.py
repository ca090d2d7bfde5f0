"""lmdeploy: the config and model classes of its PyTorch engine, built and run on a CPU without its
kernels.
"""

import sys
from pathlib import Path

from ..environment import Environment, LabRuntime, installed, wheel_sources

TRANSFORMERS = "5.24.0"
"""The newest version that lmdeploy's wheel accepts."""
HELPERS = ("mmengine-lite", "pyzmq", "addict", "termcolor", "yapf", "rich", "shortuuid", "pybase64")
"""Packages that lmdeploy's modules import, installed without their own requirements."""


def install(version: str, folder: Path) -> Environment:
    """The Python files of lmdeploy's wheel beside transformers; torch is the project's."""
    helpers = installed(folder / "helpers", *HELPERS, requirements=False)
    config_reader = installed(
        folder.parent / f"transformers-{TRANSFORMERS}", f"transformers=={TRANSFORMERS}"
    )
    return Environment(
        Path(sys.executable), (config_reader, helpers, wheel_sources("lmdeploy", version, folder))
    )


RUNTIME = LabRuntime(
    name="lmdeploy",
    program="lmdeploy_program",
    versions=("0.18.0",),
    quick=(),
    install=install,
    how=(
        "the PyTorch engine's own config and model classes run on a CPU beside transformers"
        f" {TRANSFORMERS}, without its kernels; cos and sin that its layers rotate with"
    ),
)
