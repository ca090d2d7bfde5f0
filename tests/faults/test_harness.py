"""The harness notices: a command without any care fails in each way that a fault can show."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from . import scenes
from .bench import Bench
from .cases import Case
from .harness import KILLED, Fault, Mode, Server, tree
from .power import lose, not_durable

CARELESS = Case(scenes.gguf_file, ("careless", "model.gguf", "out.gguf"), ("out.gguf",))


@pytest.fixture
def careless(server: Server, tmp_path: Path) -> Bench:
    return Bench(server, tmp_path, CARELESS)


def test_its_calls_are_counted_and_nothing_else_is(careless: Bench) -> None:
    """Python's own files, and what a command prints, are elsewhere."""
    found = [(call.kind, Path(call.path).name) for call in careless.calls]
    assert found == [("open", "out.gguf"), ("write", "out.gguf")]


FAULTS: dict[str, tuple[Fault, bool | None, str]] = {
    "a kill before the write": (Fault(Mode.KILL, 2), None, "left a part"),
    "a kill in the middle of it": (Fault(Mode.KILL_HALF, 2), None, "left a part"),
    "lost power, and the file is cut": (Fault(Mode.COUNT), True, "and left"),
    "lost power, and the file is zeros": (Fault(Mode.COUNT), False, "and left"),
    "a full disk": (Fault(Mode.FAIL_ONCE, 2, errno.ENOSPC), None, "Traceback"),
    "half of the bytes": (Fault(Mode.SHORT), None, "and left"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_does_to_it_is_found(careless: Bench, name: str) -> None:
    fault, cut, sentence = FAULTS[name]
    found = careless.strike(fault, cut)
    assert sentence in careless.wrong(found)
    assert (found.outcome.code == KILLED) == ("kill" in name)


def test_without_a_fault_nothing_is_wrong(careless: Bench) -> None:
    assert careless.wrong(careless.strike(Fault(Mode.COUNT))) == ""
    assert careless.strike(Fault(Mode.KILL, 9)).outcome.code == 0, "there is no ninth call"


def test_the_power_that_is_lost_takes_only_what_was_not_durable(server: Server, tmp_path: Path) -> None:
    scenes.gguf_file(tmp_path)
    before = tree(tmp_path)
    outcome = server.run(tmp_path, CARELESS.command, Fault(Mode.COUNT))
    assert sorted(not_durable(tmp_path, outcome.report)) == [".", "out.gguf"]
    assert lose(tmp_path, outcome.report, cut=False) == 1
    assert (tmp_path / "out.gguf").read_bytes() == bytes((tmp_path / "model.gguf").stat().st_size)
    assert tree(tmp_path)["model.gguf"] == before["model.gguf"]


def test_a_copy_that_is_not_complete_is_sound_only_beside_a_journal(bench: Callable[[str], Bench]) -> None:
    """A part under the final name is undone by the journal, while it is there."""
    case = bench("--in-place, tensors change")
    header = next(number for number, call in enumerate(case.calls, 1) if Path(call.path).name == "model.gguf")
    found = case.strike(Fault(Mode.KILL_HALF, header + 2))
    assert found.after["model.gguf"] not in (case.before["model.gguf"], case.expected["model.gguf"])
    assert case.wrong(found) == ""
    del found.after[".model.gguf.ropeconv-journal"]
    assert "left a part" in case.wrong(found)
