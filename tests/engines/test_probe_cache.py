"""The probe: its cached answers, for the same bytes read by the same code alone, and one process
for many outputs.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

import ropeconv
from ropeconv.engines.probe import Probe, ProbeCache, SharedProbe, parse_answer
from ropeconv.errors import Disagreement

from ..support.baking import make_plan, recipe_of

RIGHT: dict[str, Any] = {
    "modules": {"global": {"inv_freq": [1.0], "short": [1.0], "attention_factor": 1.0}}
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ropeconv" / "checks"


def test_answers_come_back_and_failures_are_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ProbeCache().put("a", RIGHT)
    ProbeCache().put("b", {"error": "no"})
    assert ProbeCache().get("a") == RIGHT
    assert ProbeCache().get("b") is None
    (cache / "a.json").write_text("half")
    assert ProbeCache().get("a") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "a.json"))  # where nothing can be written
    ProbeCache().put("a", RIGHT)
    assert ProbeCache().get("a") is None


@pytest.mark.parametrize(
    "odd", [{"attention_factor": math.nan}, {"inv_freq": [1.0, "x"]}, {"short": 3}]
)
def test_answers_of_other_types_are_none(cache: Path, odd: dict[str, object]) -> None:
    """NaN would pass every comparison that looks for a difference."""
    ProbeCache().put("a", RIGHT)
    (cache / "a.json").write_text(
        json.dumps({"modules": {"global": RIGHT["modules"]["global"] | odd}})
    )
    assert ProbeCache().get("a") is None
    assert parse_answer('{"class": "LlamaModel"}') is None, "neither frequencies nor an error"


def test_a_cached_answer_is_compared_again(llama: Path, tmp_path: Path, cache: Path) -> None:
    plans = [
        make_plan(llama, recipe_of("yarn", 4.0), tmp_path / str(number)) for number in range(3)
    ]
    ropeconv.apply(plans[0])
    # one is of the source, whose attention factor is 1
    answers = {file: json.loads(file.read_text()) for file in cache.iterdir()}
    assert len(answers) == 2
    (file,) = (f for f, a in answers.items() if a["modules"]["global"]["attention_factor"] > 1)
    answer = answers[file]
    ropeconv.apply(plans[1])
    answer["modules"]["global"]["inv_freq"][3] *= 1.001
    file.write_text(json.dumps(answer))
    with pytest.raises(Disagreement, match="computes other global frequencies"):
        ropeconv.apply(plans[2])


PROGRAM = """import importlib.metadata, json, sys
from pathlib import Path
version = importlib.metadata.version("transformers")
for line in sys.stdin:
    question = json.loads(line)
    if "model_type" in question:  # a request to import the class, without an answer
        continue
    if "path" in question:
        config = json.loads(Path(question["path"], "config.json").read_text())
        theta = min((config.get("rope_parameters") or config)["rope_theta"], 1e6)
    radians = [theta ** (-pair / 32) for pair in range(32)]
    module = {"inv_freq": radians, "short": radians, "attention_factor": 1.0}
    print(json.dumps({"modules": {"global": module}, "transformers": version}), flush=True)
"""
"""Answers with the frequencies of a head of 64 dimensions, and never with a base above a million."""


@pytest.mark.skipif(not Probe.available(), reason="transformers is not installed")
def test_one_probe_serves_several_outputs_and_is_started_anew_after_its_end(
    llama: Path, tmp_path: Path, cache: Path
) -> None:
    probe = SharedProbe()
    pids = []
    probe.command = [sys.executable, "-c", PROGRAM]
    for number in range(3):
        if number == 2:
            probe.process.kill()
            probe.process.wait()
        recipe = recipe_of("theta", 1e6, context=300 + number)
        assert (
            ropeconv.apply(make_plan(llama, recipe, tmp_path / str(number)), probe=probe).check
            is not None
        )
        pids.append(probe.process.pid)
    assert pids[0] == pids[1] != pids[2]
    with pytest.raises(Disagreement, match="computes other global frequencies"):
        ropeconv.apply(
            make_plan(llama, recipe_of("theta", 2e6, context=304), tmp_path / "other"), probe=probe
        )
    probe.stop()
    assert probe.process.poll() is None
    Probe.stop(probe)
    assert probe.process.poll() is not None
