"""What metadata keys of GGUF cannot hold is refused, where llama.cpp would compute something else from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf import f32
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ...support.baking import make_plan
from ...support.gguf_files import write

FAST = Recipe(REGISTRY["yarn"](4.0, beta_fast=16.0))


def test_betas_of_yarn_where_they_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake, match="beta_fast 16 and beta_slow 1 .* computes 32 and 1"):
        make_plan(write(tmp_path / "llama.gguf"), FAST, tmp_path / "out.gguf", encoding="keys")


def test_betas_of_yarn_where_they_are_read(tmp_path: Path) -> None:
    plan = make_plan(write(tmp_path / "mistral3.gguf", "mistral3"), FAST, tmp_path / "out.gguf", encoding="keys")
    assert plan.result.edit.values["mistral3.rope.scaling.yarn_beta_fast"] == f32(16.0)
