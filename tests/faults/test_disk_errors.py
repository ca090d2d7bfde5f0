"""A disk that is full or fails at any writing call: a sentence, nothing lost, and the same command works later."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from zlib import crc32

import pytest

from ..support.extent import sample, tally
from .bench import Bench
from .cases import CASES
from .harness import Fault, Mode, tree
from .power import not_durable

Get = Callable[[str], Bench]
POINTS = 2


def errors(case: Bench) -> list[Fault]:
    """A device error at every writing call, and a full disk at every one that takes space: once, and from then on."""
    found = []
    for number, call in enumerate(case.calls, 1):
        for mode in (Mode.FAIL_ONCE, Mode.FAIL_ON):
            found.append(Fault(mode, number, errno.EIO))
            if call.takes:
                found.append(Fault(mode, number, errno.ENOSPC))
    return found


@pytest.mark.parametrize("name", CASES)
def test_an_error_at_any_writing_call_loses_nothing(bench: Get, name: str) -> None:
    case = bench(name)
    wrong = {}
    faults = sample(errors(case), POINTS, crc32(name.encode()))
    for fault in faults:
        if problem := case.wrong(case.strike(fault)):
            wrong[str(fault)] = problem
    tally("disk error", name, len(faults), len(wrong))
    assert wrong == {}


@pytest.mark.parametrize("name", CASES)
def test_calls_that_do_half_of_the_bytes_give_the_same(bench: Get, name: str) -> None:
    """write(2) and copy_file_range(2) may write fewer bytes than they were asked to."""
    case = bench(name)
    folder = case.copy()
    outcome = case.server.run(folder, case.case.command, Fault(Mode.SHORT))
    assert outcome.code == 0, outcome.output
    assert tree(folder) == case.expected
    tally("short write", name, 1)


@pytest.mark.parametrize("name", CASES)
def test_what_a_command_has_done_is_on_the_disk(bench: Get, name: str) -> None:
    """When it ends, lost power takes nothing away any more: files and the folders with their names are durable."""
    case = bench(name)
    folder = case.copy()
    outcome = case.server.run(folder, case.case.command, Fault(Mode.COUNT))
    assert outcome.code == 0
    assert not_durable(folder, outcome.report) == []


def test_a_full_disk_after_the_last_file_leaves_a_folder_that_is_named(bench: Get) -> None:
    case = bench("apply")
    journal = [number for number, call in enumerate(case.calls, 1) if call.path.endswith("partial/journal")]
    found = case.strike(Fault(Mode.FAIL_ONCE, journal[-2], errno.ENOSPC))
    assert ".out.ropeconv-partial" in found.after
    assert ".out.ropeconv-partial has what is finished: the same command goes on from it; else remove it" in (
        found.outcome.output
    )
    assert case.wrong(found) == ""
    found.outcome = dataclasses.replace(found.outcome, output="ropeconv: the disk is full")
    assert "does not say so" in case.wrong(found)
