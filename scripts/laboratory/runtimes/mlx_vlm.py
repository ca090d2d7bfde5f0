"""mlx-vlm: the model of every config is built and run on a CPU, as mlx-lm's."""

import sys
from pathlib import Path

from ..environment import Environment, LabRuntime, installed
from .mlx_lm import MLX

PACKAGES = (MLX, "mlx-lm==0.32.2", "transformers==5.24.0", "pillow", "requests")
"""What its models and its program import; its wheel also asks for servers, sound and OpenCV."""


def install(version: str, folder: Path) -> Environment:
    """mlx-vlm without its requirements, and mlx for CPUs with the packages that its models
    import.
    """
    packages = installed(folder / "packages", *PACKAGES)
    return Environment(
        Path(sys.executable),
        (installed(folder / "mlx_vlm", f"mlx-vlm=={version}", requirements=False), packages),
    )


RUNTIME = LabRuntime(
    name="mlx-vlm",
    program="mlx_vlm_program",
    versions=("0.7.10",),
    quick=(),
    install=install,
    how=(
        "the model is built and run on a CPU; the rope or the attention of each layer turns unit"
        " vectors"
    ),
)
