"""The real model, which is fetched on first use; where it cannot be had, its tests are skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import ropeconv
from ropeconv.evaluate.row import parse_rows
from scripts.real_model import CACHE, RealModel, Unavailable, real_model

from ..support.baking import apply, make_plan


@pytest.fixture(scope="session")
def real() -> RealModel:
    """SmolLM2-135M-Instruct as GGUF and as checkpoint, and Python's manual as texts."""
    try:
        return real_model(CACHE)
    except Unavailable as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def extended_gguf(real: RealModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The GGUF file, patched with some methods, by the names of the rows of an evaluation."""
    folder, found = tmp_path_factory.mktemp("gguf"), dict[str, Path]()
    for row in parse_rows("yarn:4,mixed:4"):
        assert isinstance(row.recipe, ropeconv.Recipe)
        out = folder / f"{row.name.replace(':', '')}.gguf"
        found[row.name] = apply(make_plan(real.gguf, row.recipe, out))
    return found
