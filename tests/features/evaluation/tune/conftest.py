"""A small Llama, trained once for all processes of a run: nightly until it has learned something,
for 15 seconds.
"""

from pathlib import Path

import pytest
from filelock import FileLock

from scripts.research.trained_model import make

from ....support.extent import ALL


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, trained for 64 tokens, and `texts`, which it has not seen."""
    shared = (
        tmp_path_factory.getbasetemp().parent / f"trained-{ALL}"
    )  # the same in all workers of xdist
    with FileLock(f"{shared}.lock"):
        if not (shared / "texts").is_dir():
            make(shared, steps=200 if ALL else 2)
    return shared
