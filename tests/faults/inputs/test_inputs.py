"""No input ends in an unplanned error, takes more than 5 s or 500 MB, or leaves something behind when it is refused."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf import GgufFile

from ...support.extent import sample, tally
from . import worker
from .formats import FORMATS, load, write_input
from .worker import PACE, judge, run_input, run_inputs

INPUTS = 10_000
"""Inputs per format with `scripts/faults --all`."""
NAMES = sorted(load())


@pytest.mark.parametrize("name", sample(NAMES, 3))
def test_every_input_is_taken_or_refused_in_a_sentence(name: str) -> None:
    numbers = sample(range(INPUTS), 15)
    failed = [outcome for outcome in run_inputs(name, numbers) if outcome.problem]
    tally("input", name, len(numbers), len({outcome.number for outcome in failed}))
    shown = [f"{o.number} {o.problem} {o.where} {' '.join(o.command)[:200]}: {o.message[-300:]}" for o in failed[:10]]
    assert not failed, "\n".join(shown)


@pytest.mark.parametrize("name", sample(NAMES, 2, seed=1))
def test_a_number_always_makes_the_same_input_and_another_number_another(name: str, tmp_path: Path) -> None:
    def made(number: int, folder: Path) -> str:
        commands = write_input(name, number, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return repr((commands, [(path.name, path.read_bytes()) for path in files]))

    inputs = [made(number, tmp_path / str(number)) for number in range(20)]
    assert made(7, tmp_path / "again") == inputs[7]
    assert len(set(inputs)) > 10


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
        ((0, "", 9.9, 1.0, False, 2.0), ""),  # a machine that is twice as slow has twice the time
        ((0, "", 10.1, 1.0, False, 2.0), "10.1 s"),
        ((0, "", 5.1, 1.0, False, 0.5), "5.1 s"),
        ((1, "ropeconv: too large", 0.1, 501.0, False), "501 MB"),
        ((1, "ropeconv: no", 0.1, 1.0, True), "wrote something"),
    ],
)
def test_runs_are_judged(seen: tuple[Any, ...], problem: str) -> None:
    assert judge(*seen) == problem


def _busy() -> None:
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass


FAULTS: dict[str, Callable[[], object]] = {
    "unexpected": lambda: {}["missing"],
    "wrote something": lambda: Path("left").write_text("x"),
    "s": _busy,
    "MB": lambda: len(b"x" * 600_000_000),
}


@pytest.mark.parametrize("problem", FAULTS)
def test_what_a_faulty_command_does_is_noticed(problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: str) -> None:
        FAULTS[problem]()
        raise BadSource("no")

    monkeypatch.setitem(FORMATS, "faulty", lambda random, folder: [["inspect", "x"]])
    monkeypatch.setattr("ropeconv.sources.open_source", refuse)
    monkeypatch.setattr(worker, "SECONDS", 0.2 if problem == "s" else 60.0)
    monkeypatch.setattr(worker, "slower", lambda: 1.0)
    (outcome,) = run_input("faulty", 0, tmp_path)
    assert outcome.problem.lstrip("0123456789. ") == problem
    assert outcome.where


def test_the_pace_of_a_machine_is_that_of_a_plain_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropeconv.engines.probe.Probe.available", lambda: False)
    assert 0.1 < worker.slower() < 100
    run = worker._run
    monkeypatch.setattr(worker, "_run", lambda command: (_busy(), run(command))[1])
    assert worker.slower() > 0.3 / PACE


STAND_IN = """
import json, os, signal, sys, time
for number in map(int, sys.argv[2].split(",")):
    print(json.dumps({"begins": number}), flush=True)
    if number == 1:
        time.sleep(60)
    if number == 3:
        os.abort()
"""


def test_a_process_that_hangs_or_dies_is_a_failure_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "HANGS", 2.0)
    monkeypatch.setattr(worker, "WORKER", [sys.executable, "-c", STAND_IN])
    found = [(outcome.number, outcome.problem) for outcome in run_inputs("any", [0, 1, 2, 3, 4])]
    assert found == [(1, "hangs"), (3, "the process died")]


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values are equal, where NaN equals itself."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    numbers = isinstance(ours, float) and isinstance(theirs, float)
    return bool(ours == theirs) or (numbers and math.isnan(ours) and math.isnan(theirs))


def value_of(field: Any) -> Any:
    """The value of a key; strings that are not UTF-8 as ours has them."""
    kinds = [int(kind) for kind in field.types]
    if kinds == [9] or not len(field.data):
        return []
    parts = [field.parts[index] for index in field.data]
    found = [bytes(part).decode("utf-8", "replace") if kinds[-1] == 8 else part.tolist()[0] for part in parts]
    found = [bool(item) for item in found] if kinds[-1] == 7 else found
    return found if kinds[0] == 9 else found[0]


@pytest.mark.parametrize("name", ["gguf", "gguf keys"])
def test_gguf_py_reads_the_same(name: str, tmp_path: Path) -> None:
    """What is accepted as GGUF: the same keys with the same values, the same tensors and bytes."""
    accepted, numbers = 0, sample(range(INPUTS), 60)
    for number in numbers:
        folder = tmp_path / str(number)
        write_input(name, number, folder)
        try:
            file = GgufFile.open(folder / "m.gguf")
        except BadSource:
            continue
        accepted += 1
        reader = gguf.GGUFReader(folder / "m.gguf")
        keys = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert set(keys) == set(file.header.values), number
        assert all(same(file.get(key), value_of(field)) for key, field in keys.items()), number
        ours = {one.name: (one.shape, one.type, file.read(one.name)) for one in file.tensors.values()}
        assert ours == {
            one.name: (tuple(map(int, one.shape)), int(one.tensor_type), one.data.tobytes()) for one in reader.tensors
        }, number
    tally("second reader", name, len(numbers))
    assert accepted > len(numbers) / 20
