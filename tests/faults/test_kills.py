"""A kill, lost power or a disk error at any writing call: sources stay, no half output takes its name, errors are one
sentence, and the same command completes it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from ..support.extent import few, tally
from . import scenes
from .bench import Bench
from .cases import CASES, Case
from .harness import KILLED, Fault, Mode, Server, not_durable, tree

Get = Callable[[str], Bench]


def kills(case: Bench) -> list[Fault]:
    """A kill before every writing call, and in the middle of every one that moves bytes."""
    calls = list(enumerate(case.expected[1], 1))
    halves = [Fault(Mode.KILL_HALF, number) for number, call in calls if call.moves]
    return [*(Fault(Mode.KILL, number) for number, _ in calls), *halves]


def errors(case: Bench) -> list[Fault]:
    """A device error at every writing call, and a full disk at every one that takes space: once, and from then on."""
    calls = [(number, call, mode) for number, call in enumerate(case.expected[1], 1) for mode in (FAIL_ONCE, FAIL_ON)]
    full = [Fault(mode, number, errno.ENOSPC) for number, call, mode in calls if call.takes]
    return [*(Fault(mode, number, errno.EIO) for number, _, mode in calls), *full]


FAIL_ONCE, FAIL_ON = Mode.FAIL_ONCE, Mode.FAIL_ON
KINDS: dict[str, Callable[[Bench], list[tuple[Fault, bool | None]]]] = {
    "kill": lambda case: [(fault, None) for fault in kills(case)],
    "power": lambda case: [(fault, cut) for fault in kills(case) for cut in (True, False)],
    "disk error": lambda case: [(fault, None) for fault in errors(case)],
}
"""Lost power is as `power` models it: what no fsync has made durable is not on the disk."""


@pytest.mark.parametrize("name", few(list(CASES), 2))
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_writing_call_loses_nothing(bench: Get, kind: str, name: str) -> None:
    case, wrong = bench(name), {}
    faults = few(KINDS[kind](case), 2, crc32(f"{kind} {name}".encode()))
    for fault, cut in faults:
        found = case.strike(fault, cut)
        assert (found.outcome.code == KILLED) == (kind != "disk error"), f"{fault}: {found.outcome}"
        if problem := case.wrong(found):
            wrong[f"{fault} {cut}"] = problem
    tally(kind, name, len(faults), len(wrong))
    assert wrong == {}


@pytest.mark.parametrize("name", few(list(CASES), 2, seed=1))
def test_calls_that_do_half_of_the_bytes_give_the_same(bench: Get, name: str) -> None:
    """write(2) and copy_file_range(2) may write fewer bytes than they were asked to."""
    case = bench(name)
    folder = case.copy()
    outcome = case.server.run(folder, case.case.command, Fault(Mode.SHORT))
    assert outcome.code == 0, outcome.output
    assert tree(folder) == case.expected[0]
    tally("short write", name, 1)


@pytest.mark.parametrize("name", few(list(CASES), 2, seed=2))
def test_what_a_command_has_done_is_on_the_disk(bench: Get, name: str) -> None:
    """When it ends, lost power takes nothing away any more: files and the folders with their names are durable."""
    case = bench(name)
    folder = case.copy()
    outcome = case.server.run(folder, case.case.command, Fault(Mode.COUNT))
    assert outcome.code == 0
    assert not_durable(folder, outcome.report) == []


def test_a_full_disk_after_the_last_file_leaves_a_folder_that_is_named(bench: Get) -> None:
    case = bench("apply")
    journal = [number for number, call in enumerate(case.expected[1], 1) if call.path.endswith("partial/journal")]
    found = case.strike(Fault(FAIL_ONCE, journal[-2], errno.ENOSPC))
    assert ".out.ropeconv-partial" in found.after
    said = ".out.ropeconv-partial has the finished files: the same command continues; else remove it"
    assert said in found.outcome.output
    assert case.wrong(found) == ""


CARELESS = Case(scenes.gguf_file, ("careless", "model.gguf", "out.gguf"), ("out.gguf",))


@pytest.fixture
def careless(server: Server, tmp_path: Path) -> Bench:
    return Bench(server, tmp_path, CARELESS)


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
