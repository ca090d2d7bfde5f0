"""mlx-lm: the model of every config is built and run on a CPU; its ropes are called on unit
vectors.
"""

import sys
from pathlib import Path

from ..environment import Environment, LabRuntime, installed

MLX = "mlx[cpu]==0.32.4"


def install(version: str, folder: Path) -> Environment:
    """mlx-lm with mlx for CPUs and the packages it asks for, none of them the project's."""
    return Environment(Path(sys.executable), (installed(folder, MLX, f"mlx-lm=={version}"),))


RUNTIME = LabRuntime(
    name="mlx-lm",
    program="ask_mlx_lm",
    versions=("0.29.1", "0.30.0", "0.30.2", "0.30.6", "0.30.7", "0.31.1", "0.31.3", "0.32.2"),
    quick=("0.32.2",),
    install=install,
    how=(
        "the model is built and run on a CPU; the rope that each attention calls turns unit vectors"
    ),
)
