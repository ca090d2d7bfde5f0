"""What ropeconv itself wrote is never suspicious: `inspect` finds in an output what it found in the source."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import UnsupportedBake
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, inspected, make_plan, recipe_of
from ..support.extent import sample
from ..support.gguf_files import write
from ..support.models import TRAINED

PAIRS = 32
VECTOR = tuple(float(value) for value in 10000.0 ** (-np.arange(PAIRS) / PAIRS) / 3)
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "theta": (1e6,), "theta-for": (256,), "theta-bound": (256,), "longrope": ((4.0,) * PAIRS, (2.0,) * PAIRS),
    "piecewise": ("8@16",), "inv-freq": (VECTOR,), "dynamic": ("ntk:4", 256), "as-is": (),
}  # fmt: skip


def recipe(method: str, context: int = 0) -> Recipe:
    lengths = {"theta", "longrope", "piecewise", "inv-freq"}
    wanted = context or (256 if method in lengths else None)
    return recipe_of(method, *PARAMETERS.get(method, (4.0,)), context=wanted)


def codes(path: Path) -> set[str]:
    return {problem.code for problem in inspected(path).problems} - {"bound"}


FOLDERS = list(product(sorted(REGISTRY), ("native", "factors", "weights", "ministral3"), (0, 200)))
FILES = list(product(sorted(REGISTRY), ("keys", "tensor", "carrier"), (0, 200)))


@pytest.mark.parametrize(("method", "encoding", "context"), sample(FOLDERS))
def test_folders(llama: Path, tmp_path: Path, method: str, encoding: str, context: int) -> None:
    """buffers have a model type of their own, which inspect does not read."""
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    assert_nothing_new(llama, tmp_path / "out", recipe(method, context), encoding)


@pytest.mark.parametrize(("method", "encoding", "context"), sample(FILES))
def test_gguf_files(tmp_path: Path, method: str, encoding: str, context: int) -> None:
    assert_nothing_new(write(tmp_path / "model.gguf"), tmp_path / "out.gguf", recipe(method, context), encoding)


def assert_nothing_new(source: Path, out: Path, of: Recipe, encoding: str) -> None:
    try:
        plan = make_plan(source, of, out, encoding=encoding)
    except UnsupportedBake:
        return
    assert codes(apply(plan)) == codes(source) == set()
    assert inspected(out).spec.original_context == TRAINED


def test_the_same_settings_of_somebody_else_are_suspicious(llama: Path, tmp_path: Path) -> None:
    """Without the receipt, or with a config that was edited, nobody says that the shorter context was wanted."""
    out = apply(make_plan(llama, recipe("yarn", 200), tmp_path / "out"))
    receipt, config = out / "ropeconv.json", json.loads((out / "config.json").read_text())
    assert codes(out) == set()
    receipt.rename(tmp_path / "ropeconv.json")
    assert codes(out) == {"context"}
    (tmp_path / "ropeconv.json").rename(receipt)
    (out / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    assert codes(out) == {"context"}
    receipt.write_text("{")  # a damaged receipt is none
    assert codes(out) == {"context"}
