"""Whether llama.cpp loads a file: its answer, and what happens where it gives none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import ropeconv
from ropeconv.engines.llamacpp import loading
from ropeconv.engines.llamacpp.process import last_words
from ropeconv.errors import RopeconvError
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe

from ..support.baking import changed_weights, make_plan
from ..support.llamacpp import checkpoint

HANGS = "import time; time.sleep(600)"


def test_a_loader_that_hangs_is_ended_and_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint("llama", tmp_path / "source")
    plan = make_plan(source, Recipe(METHODS["yarn"](4.0)), tmp_path / "out.gguf", to="gguf", outtype="f32")
    monkeypatch.setattr(loading, "available", lambda: True)
    monkeypatch.setattr(loading, "PROGRAM", HANGS)
    monkeypatch.setattr(loading, "LONGEST", 0.5)
    before = time.monotonic()
    with pytest.raises(RopeconvError, match=r"llama.cpp cannot run .* did not end within 0.5 seconds; .*nothing was"):
        ropeconv.apply(plan)
    assert time.monotonic() - before < 60
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["source"]


def test_one_that_answers_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(loading, "PROGRAM", "")
    assert loading.why_not_run(tmp_path / "a.gguf") == ("", "")
    monkeypatch.setattr(loading, "PROGRAM", "import sys; sys.exit('error: no tensors')")
    assert loading.why_not_run(tmp_path / "a.gguf") == ("error: no tensors", "")
    assertion = "import os, sys; sys.stderr.write('/tmp/build/ggml/ops.cpp:9: GGML_ASSERT(a) failed'); os.abort()"
    monkeypatch.setattr(loading, "PROGRAM", assertion)
    assert loading.why_not_run(tmp_path / "a.gguf")[0] == "ops.cpp:9: GGML_ASSERT(a) failed (ended by signal 6)"


def test_a_slow_file_and_one_larger_than_the_memory_are_only_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" * 500)
    monkeypatch.setattr(loading, "PROGRAM", "print('loaded', flush=True);" + HANGS)
    monkeypatch.setattr(loading, "LONGEST", 2.0)
    slow = "llama.cpp loaded the file and decoded no five tokens within 2 seconds"
    assert loading.why_not_run(tmp_path / "a.gguf") == ("", slow)
    monkeypatch.setattr(loading, "PROGRAM", "import sys; assert sys.argv[2] == '0'")
    monkeypatch.setattr(loading, "_memory", lambda: 1999)
    large = "the file (2.0 kB) is larger than the memory, so llama.cpp only loaded it"
    assert loading.why_not_run(tmp_path / "a.gguf") == ("", large)


def test_a_file_whose_weights_are_too_large_for_its_type_has_no_name(tmp_path: Path) -> None:
    """Infinity in F16, from which llama.cpp computes NaN; in F32 the same checkpoint is written."""
    pytest.importorskip("llama_cpp")
    source = checkpoint("llama", tmp_path / "source")
    changed_weights(source, "model.layers.0.mlp.down_proj", 1e9)
    yarn = Recipe(METHODS["yarn"](4.0))
    with pytest.raises(RopeconvError, match=r"it computes NaN, .*nothing was kept"):
        ropeconv.apply(make_plan(source, yarn, tmp_path / "out.gguf", to="gguf", outtype="f16"))
    assert not (tmp_path / "out.gguf").exists()
    assert ropeconv.apply(make_plan(source, yarn, tmp_path / "out.gguf", to="gguf", outtype="f32")).reason == ""


def test_the_line_of_the_failure_is_quoted_and_not_a_key_or_warning() -> None:
    log = "kv 3: x.name str = a missing invalid\nerror loading model: no x"
    assert last_words(log, 1) == "error loading model: no x"
