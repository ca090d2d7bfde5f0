"""Tiny models that several tests evaluate."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `source`, a tiny Llama that has a tokenizer, and `yarn`, the output of --yarn 4
    from it.
    """
    from ...support.llamacpp import checkpoint
    from .runners.reading import baked

    folder = tmp_path_factory.mktemp("evaluated")
    baked(checkpoint("llama", folder / "source"), "yarn:4", folder / "yarn")
    return folder


@pytest.fixture(scope="session")
def tiny_llama(models: Path) -> Path:
    return models / "source"
