"""Checkpoints that several tests of a module start from."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a module keeps them."""
    return tmp_path_factory.mktemp("sources")


def source_in(sources: Path, model_type: str) -> Path:
    """One of them, made when it is first asked for."""
    from ...support.llamacpp import checkpoint

    folder = sources / model_type
    return folder if folder.exists() else checkpoint(model_type, folder)
