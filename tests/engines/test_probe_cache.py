"""Cached answers of the probe: only for the same bytes read by the same code, and compared again each time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.engines.probe import Probe, ProbeCache
from ropeconv.engines.probe.answer import parsed

from ..conftest import Run

RIGHT: dict[str, Any] = {"modules": {"global": {"inv_freq": [1.0], "short": [1.0], "attention_factor": 1.0}}}
CONFIG = '{"model_type": "llama"}'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ropeconv" / "checks"


def test_the_key_covers_what_the_answer_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    base = ProbeCache.key(CONFIG, "llama", 64)
    others = {
        ProbeCache.key(CONFIG + " ", "llama", 64),
        ProbeCache.key(CONFIG, "qwen2", 64),
        ProbeCache.key(CONFIG, "llama", 65),
    }
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0")
    others.add(ProbeCache.key(CONFIG, "llama", 64))
    assert len(others | {base}) == 5


def test_answers_come_back_and_failures_are_not_kept(cache: Path) -> None:
    ProbeCache().put("a", RIGHT)
    ProbeCache().put("b", {"error": "no"})
    assert ProbeCache().get("a") == RIGHT
    assert ProbeCache().get("b") is None
    (cache / "a.json").write_text("half")
    assert ProbeCache().get("a") is None


@pytest.mark.parametrize(
    "odd",
    [
        {"attention_factor": math.nan}, {"attention_factor": "1"}, {"inv_freq": None}, {"inv_freq": [1.0, "x"]},
        {"short": 3}, {"inv_freq": [math.inf]},
    ],
)  # fmt: skip
def test_answers_of_other_types_are_none(cache: Path, odd: dict[str, object]) -> None:
    """NaN would pass every comparison that looks for a difference."""
    ProbeCache().put("a", RIGHT)
    (cache / "a.json").write_text(json.dumps({"modules": {"global": RIGHT["modules"]["global"] | odd}}))
    assert ProbeCache().get("a") is None
    assert parsed((cache / "a.json").read_text()) is None
    assert parsed('{"error": "no"}') == {"error": "no"}


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    ProbeCache().put("a", {"modules": {}})
    assert ProbeCache().get("a") is None


def test_a_cached_answer_is_compared_again(run: Run, llama: Path, cache: Path) -> None:
    """A wrong answer in the cache ends the run with 3, so it is read; a right one passes, and is the probe's."""
    assert run("apply", "model", "--yarn", "4", "-q", "-o", "first").returncode == 0
    (file,) = cache.iterdir()
    answer = json.loads(file.read_text())
    assert run("apply", "model", "--yarn", "4", "-q", "-o", "second").returncode == 0
    answer["modules"]["global"]["inv_freq"][3] *= 1.001
    file.write_text(json.dumps(answer))
    done = run("apply", "model", "--yarn", "4", "-q", "-o", "third")
    assert done.returncode == 3
    assert "computes other global frequencies" in done.stderr


def test_a_stopped_probe_stays_stopped(tiny: Callable[[str], Path]) -> None:
    with Probe() as probe:
        probe.stop()
        assert probe.process.returncode is not None
