"""exllamav3: its config classes, model constructors and RoPE run on a CPU; its kernels do not."""

import sys
from pathlib import Path

from ..environment import Environment, LabRuntime, wheel_sources


def install(version: str, folder: Path) -> Environment:
    """The Python files of exllamav3; torch, tokenizers and safetensors are the project's."""
    return Environment(Path(sys.executable), (wheel_sources("exllamav3", version, folder),))


RUNTIME = LabRuntime(
    name="exllamav3",
    program="ask_exllamav3",
    versions=("1.4.1", "1.4.2", "1.4.5", "1.4.6", "1.4.9", "1.5.0", "1.5.3", "1.6.5"),
    quick=("1.6.5",),
    install=install,
    how=(
        "config and model classes on a CPU; the frequencies and the factor that each attention"
        " gives to its kernel"
    ),
)
