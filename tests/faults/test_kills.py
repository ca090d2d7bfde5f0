"""A kill at any writing call: sources stay, no half output takes its name, and the same command completes it."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest

from ..support.extent import sample, tally
from .bench import Bench
from .cases import CASES
from .harness import KILLED, Fault, Mode

Get = Callable[[str], Bench]
POINTS = 2


def kills(case: Bench) -> list[Fault]:
    """A kill before every writing call, and in the middle of every one that moves bytes."""
    found = []
    for number, call in enumerate(case.calls, 1):
        found.append(Fault(Mode.KILL, number))
        if call.moves:
            found.append(Fault(Mode.KILL_HALF, number))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_kill_at_any_writing_call_loses_nothing(bench: Get, name: str) -> None:
    case = bench(name)
    wrong = {}
    faults = sample(kills(case), POINTS, crc32(f"kill {name}".encode()))
    for fault in faults:
        found = case.strike(fault)
        assert found.outcome.code == KILLED, f"{fault}: {found.outcome}"
        if problem := case.wrong(found):
            wrong[str(fault)] = problem
    tally("kill", name, len(faults), len(wrong))
    assert wrong == {}


@pytest.mark.parametrize("name", CASES)
def test_lost_power_at_any_writing_call_loses_nothing(bench: Get, name: str) -> None:
    """As `power` models it: what no fsync has made durable is not on the disk."""
    case = bench(name)
    wrong = {}
    faults = sample(
        [(fault, cut) for fault in kills(case) for cut in (True, False)], POINTS, crc32(f"power {name}".encode())
    )
    for fault, cut in faults:
        if problem := case.wrong(case.strike(fault, cut)):
            wrong[f"{fault} {'cut' if cut else 'zeroed'}"] = problem
    tally("power", name, len(faults), len(wrong))
    assert wrong == {}


def test_shards_of_two_outputs_never_stand_complete_beside_each_other(bench: Get) -> None:
    """`--force` over several shards: a kill before every change of a final name."""
    case = bench("apply --force, GGUF in shards")
    changes = [number for number, call in enumerate(case.calls, 1) if call.path.endswith(case.case.output)]
    names = [number for number in changes if ".ropeconv-partial/" not in case.calls[number - 1].path]
    assert len(names) >= 2
    faults = [Fault(Mode.KILL, number) for number in (*names, names[-1] + 1)]
    assert [case.wrong(case.strike(fault)) for fault in faults] == [""] * len(faults)
