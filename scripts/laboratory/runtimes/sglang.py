"""SGLang: its model files and rotary embeddings, on a CPU, with stubs for kernels (see
`programs/sglang_stubs.py`).
"""

import re
import sys
from pathlib import Path

from ..environment import Environment, LabRuntime, installed, wheel_sources

# Small packages that SGLang's modules use while they are imported. They are installed without their
# own requirements.
HELPERS = (
    "orjson",
    "pybase64",
    "einops",
    "dill",
    "cachetools",
    "cloudpickle",
    "pyzmq",
    "xxhash",
    "zstandard",
    "partial_json_parser",
    "interegular",
    "compressed-tensors==0.18.0",
)


def install(version: str, folder: Path) -> Environment:
    """Make the environment of a version of SGLang.

    It has the Python files of its wheel, the transformers that its metadata asks for, and the small
    packages that it imports.

    Args:
        version: The version.
        folder: The folder of all versions.
    """
    sources = wheel_sources("sglang", version, folder / version)
    metadata = next(sources.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    match = re.search(r"^Requires-Dist: transformers==([\w.]+)", metadata, re.MULTILINE)
    if match is None:
        raise ValueError(f"sglang {version} names no version of transformers")
    transformers = installed(folder / f"transformers-{match[1]}", f"transformers=={match[1]}")
    helpers = installed(folder / "helpers", *HELPERS, requirements=False)
    return Environment(
        Path(sys.executable), (transformers, helpers, sources), (("OMP_NUM_THREADS", "1"),)
    )


RUNTIME = LabRuntime(
    name="sglang",
    program="sglang_program",
    versions=("0.5.10", "0.5.16", "0.5.20", "0.5.23"),
    quick=(),
    install=install,
    how=(
        "SGLang's ModelConfig, model class (on meta) and rotary embeddings, run on a CPU with"
        " stubbed kernels"
    ),
)
