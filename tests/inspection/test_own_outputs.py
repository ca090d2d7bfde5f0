"""What ropeconv itself wrote is never suspicious: `inspect` finds in an output what it found in the source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import RopeconvError, UnsupportedBake
from ropeconv.formats.gguf import Edit, GgufFile
from ropeconv.formats.gguf.write import write_new
from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..support.baking import apply, make_plan
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
    return Recipe(REGISTRY[method](*PARAMETERS.get(method, (4.0,))), context=wanted)


def codes(path: Path) -> set[str]:
    return {problem.code for problem in inspect_source(open_source(str(path))).problems} - {"bound"}


@pytest.mark.parametrize("context", [0, 200])
@pytest.mark.parametrize("encoding", ["native", "factors", "weights", "ministral3"])
@pytest.mark.parametrize("method", sorted(REGISTRY))
def test_folders(llama: Path, tmp_path: Path, method: str, encoding: str, context: int) -> None:
    """buffers have a model type of their own, which inspect does not read."""
    (llama / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    try:
        plan = make_plan(llama, recipe(method, context), tmp_path / "out", encoding=encoding)
    except UnsupportedBake:
        return
    assert codes(apply(plan)) == codes(llama) == set()
    assert inspect_source(open_source(str(tmp_path / "out"))).spec.original_context == TRAINED


@pytest.mark.parametrize("context", [0, 200])
@pytest.mark.parametrize("encoding", ["keys", "tensor", "carrier"])
@pytest.mark.parametrize("method", sorted(REGISTRY))
def test_gguf_files(tmp_path: Path, method: str, encoding: str, context: int) -> None:
    source = write(tmp_path / "model.gguf")
    try:
        plan = make_plan(source, recipe(method, context), tmp_path / "out.gguf", encoding=encoding)
    except UnsupportedBake:
        return
    assert codes(apply(plan)) == codes(source) == set()
    assert inspect_source(open_source(str(tmp_path / "out.gguf"))).spec.original_context == TRAINED


@pytest.mark.parametrize("model_type", ["gemma3_text", "phi3", "qwen3", "olmo3", "ministral3", "deepseek_v3"])
def test_families(tiny: Callable[[str], Path], tmp_path: Path, model_type: str) -> None:
    source, baked = tmp_path / "model", 0
    shutil.copytree(tiny(model_type), source)
    for method in ("yarn", "ntk", "llama3", "mixed"):
        try:
            out = apply(make_plan(source, recipe(method), tmp_path / method))
        except RopeconvError:
            continue
        baked += 1
        assert codes(out) == codes(source)
    assert baked > 1


def test_the_same_settings_of_somebody_else_are_suspicious(llama: Path, tmp_path: Path) -> None:
    """Without the receipt, or with a config that was edited, nobody says that the shorter context was wanted."""
    out = apply(make_plan(llama, recipe("yarn", 200), tmp_path / "out"))
    assert codes(out) == set()
    (out / "ropeconv.json").rename(tmp_path / "ropeconv.json")
    assert codes(out) == {"context"}
    (tmp_path / "ropeconv.json").rename(out / "ropeconv.json")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    assert codes(out) == {"context"}
    baked = apply(make_plan(write(tmp_path / "model.gguf"), recipe("yarn", 200), tmp_path / "baked.gguf"))
    write_new(GgufFile.open(baked), 0, Edit(dropped=frozenset({"ropeconv.json"})), tmp_path / "bare.gguf")
    assert (codes(baked), codes(tmp_path / "bare.gguf")) == (set(), {"context"})


def test_a_damaged_receipt_is_no_receipt(llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, recipe("ntk"), tmp_path / "out"))
    assert inspect_source(open_source(str(out))).spec.original_context == TRAINED
    (out / "ropeconv.json").write_text("{")
    assert inspect_source(open_source(str(out))).spec.original_context == 4 * TRAINED
