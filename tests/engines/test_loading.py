"""Whether llama.cpp loads a file: its answer, and what happens where it gives none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import ropeconv
from ropeconv.engines.llamacpp import loading
from ropeconv.errors import Disagreement
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe

from ..baking import make_plan
from ..llamacpp import checkpoint

HANGS = "import time; time.sleep(600)"


def test_a_loader_that_hangs_is_ended_and_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint("llama", tmp_path / "source")
    plan = make_plan(source, Recipe(METHODS["yarn"](4.0)), tmp_path / "out.gguf", to="gguf", outtype="f32")
    monkeypatch.setattr(loading, "available", lambda: True)
    monkeypatch.setattr(loading, "PROGRAM", HANGS)
    monkeypatch.setattr(loading, "LONGEST", 0.5)
    before = time.monotonic()
    with pytest.raises(Disagreement, match=r"llama.cpp does not load .* did not end within 0.5 seconds; .*nothing was"):
        ropeconv.apply(plan)
    assert time.monotonic() - before < 60
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["source"]


def test_one_that_answers_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PROGRAM", "")
    assert loading.why_not_loaded(tmp_path / "a.gguf") == ""
    monkeypatch.setattr(loading, "PROGRAM", "import sys; sys.exit('error: no tensors')")
    assert loading.why_not_loaded(tmp_path / "a.gguf") == "error: no tensors"
