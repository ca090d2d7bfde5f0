"""No input ends in an unplanned error, takes more than 5 s or 500 MB, or leaves something behind when it is refused."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

import pytest

from ...support.extent import sample, tally
from . import run
from .bytes_mutations import DAMAGE
from .formats import FORMATS, Commands, load, write_input
from .json_mutations import Raw, changed, text_of
from .run import run_inputs
from .worker import judge, run_input

INPUTS = 10_000
"""Inputs per format with `scripts/faults --all`."""
SAMPLE = 40


@pytest.mark.parametrize("name", sorted(load()))
def test_every_input_is_taken_or_refused_in_a_sentence(name: str) -> None:
    numbers = sample(range(INPUTS), SAMPLE)
    failed = [outcome for outcome in run_inputs(name, numbers) if outcome.problem]
    tally("input", name, len(numbers), len({outcome.number for outcome in failed}))
    shown = [f"{o.number} {o.problem} {o.where} {' '.join(o.command)[:200]}: {o.message[-300:]}" for o in failed[:10]]
    assert not failed, "\n".join(shown)


@pytest.mark.parametrize("name", sorted(load()))
def test_the_same_number_makes_the_same_input(name: str, tmp_path: Path) -> None:
    made = []
    for attempt in ("a", "b"):
        folder = tmp_path / attempt
        folder.mkdir()
        commands = write_input(name, 7, folder)
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        made.append((commands, files))
    assert made[0] == made[1]


@pytest.mark.parametrize("name", sorted(load()))
def test_inputs_differ_from_each_other(name: str, tmp_path: Path) -> None:
    made = set()
    for number in range(20):
        (folder := tmp_path / str(number)).mkdir()
        commands = write_input(name, number, folder)
        files = [(path.name, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()]
        made.add(repr((commands, files)))
    assert len(made) > 10


def test_changes_to_json_reach_every_key() -> None:
    seed = {"a": 1, "b": {"c": [1, 2]}}
    seen = [changed(Random(number), seed) for number in range(300)]
    assert seed == {"a": 1, "b": {"c": [1, 2]}}
    assert any(not isinstance(made, dict) for made in seen)
    objects = [made for made in seen if isinstance(made, dict)]
    assert any("a" not in made for made in objects)
    assert any(isinstance(made.get("a"), Raw) for made in objects)
    assert any(isinstance(made.get("b"), dict) and made["b"].get("c") not in ([1, 2], None) for made in objects)


def test_json_texts_hold_what_json_dumps_does_not_write() -> None:
    texts = {text_of(Random(number), {"a": Raw("1e999")}) for number in range(200)}
    assert any(b"1e999" in text and b"model_type" in text for text in texts)
    assert any(text.startswith(b"\xef\xbb\xbf") for text in texts)
    assert len(texts) > 10


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_changes_bytes(damage: object) -> None:
    assert any(damage(Random(number), b"0123456789" * 10) != b"0123456789" * 10 for number in range(5))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        ((0, "", 0.1, 1.0, True), ""),
        ((1, "ropeconv: no such file", 0.1, 1.0, False), ""),
        ((2, "ropeconv: Got unexpected extra argument(s) (4)", 0.1, 1.0, False), ""),
        ((1, "ropeconv: unexpected KeyError: 'a'; set ROPECONV_DEBUG=1, and report it", 0.1, 1.0, False), "unexpected"),
        ((1, "Traceback (most recent call last)", 0.1, 1.0, False), "a traceback"),
        ((130, "ropeconv: interrupted", 0.1, 1.0, False), "exit code 130"),
        ((1, "Segmentation fault", 0.1, 1.0, False), "no sentence"),
        ((0, "", 5.5, 1.0, False), "5.5 s"),
        ((1, "ropeconv: too large", 0.1, 501.0, False), "501 MB"),
        ((1, "ropeconv: no", 0.1, 1.0, True), "wrote something"),
    ],
)
def test_runs_are_judged(seen: tuple[int, str, float, float, bool], problem: str) -> None:
    assert judge(*seen) == problem


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A format of one input, whose command is `inspect x`; `ropeconv inspect` can be replaced by something faulty."""

    def write(random: Random, folder: Path) -> Commands:
        return [["inspect", "x"]]

    monkeypatch.setitem(FORMATS, "faulty", write)
    monkeypatch.chdir(Path.cwd())
    return monkeypatch


def test_an_unplanned_error_is_noticed(faulty: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faulty.setattr("ropeconv.sources.open_source", lambda *given: {}["missing"])
    (outcome,) = run_input("faulty", 0, tmp_path)
    assert outcome.problem == "unexpected"
    assert "cli/inspect.py" in outcome.where or outcome.where


def test_time_is_measured(faulty: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def slow(*given: str) -> None:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass

    faulty.setattr("ropeconv.sources.open_source", slow)
    (outcome,) = run_input("faulty", 0, tmp_path)
    assert 0.3 <= outcome.seconds < 5


def test_memory_is_measured(faulty: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faulty.setattr("ropeconv.sources.open_source", lambda *given: len(b"x" * 600_000_000))
    (outcome,) = run_input("faulty", 0, tmp_path)
    assert outcome.megabytes >= 500


def test_what_a_refused_command_leaves_behind_is_noticed(faulty: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ropeconv.errors import BadSource

    def leave(*given: str) -> None:
        Path("left").write_text("x")
        raise BadSource("no")

    faulty.setattr("ropeconv.sources.open_source", leave)
    (outcome,) = run_input("faulty", 0, tmp_path)
    assert outcome.problem == "wrote something"


STAND_IN = """
import json, os, signal, sys, time
for number in map(int, sys.argv[2].split(",")):
    print(json.dumps({"begins": number}), flush=True)
    if number == 1:
        time.sleep(60)
    if number == 3:
        os.abort()
"""


def test_a_worker_that_hangs_or_dies_is_a_failure_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HANGS", 4.0)
    monkeypatch.setattr(run, "WORKER", [sys.executable, "-c", STAND_IN])
    found = [(outcome.number, outcome.problem) for outcome in run_inputs("any", [0, 1, 2, 3, 4])]
    assert found == [(1, "hangs"), (3, "the process died")]
