"""text-generation-inference 3: the attention of its model files, on a CPU. LAB_TGI names its server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..environment import Environment, LabRuntime, NotInstallable, installed

TRANSFORMERS = "4.51.3"


def install(version: str, folder: Path) -> Environment:
    """The environment of a checkout. Raises NotInstallable unless LAB_TGI is the path of its `server` folder."""
    server = Path(os.environ.get("LAB_TGI", ""))
    if not (server / "text_generation_server" / "layers" / "rotary.py").is_file():
        raise NotInstallable(
            f"TGI {version} is no package: set LAB_TGI to the `server` folder of a checkout of "
            "github.com/huggingface/text-generation-inference at tag v3.3.7"
        )
    transformers = installed(folder / f"transformers-{TRANSFORMERS}", f"transformers=={TRANSFORMERS}")
    return Environment(Path(sys.executable), (transformers, server.resolve()), (("OMP_NUM_THREADS", "1"),))


RUNTIME = LabRuntime(
    name="tgi",
    program="tgi_program.py",
    versions=("3.3.7",),
    quick=(),
    install=install,
    how="TGI 3.3.7: the constructor of attention of its model file and its rotary embedding, run on a CPU",
)
