"""Killed workers and killed runs: every unit ends once, and nothing that had ended is done again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ropeconv.run.executors.local import Local
from ropeconv.run.jobs import jobs_of
from ropeconv.run.journal import RunJournal, RunLine
from ropeconv.run.plan_file import read_plan
from ropeconv.run.running import TaskWorker, missing, run_jobs
from ropeconv.run.sources import named_sources
from ropeconv.run.unit import Job

from ..conftest import run_in
from .plans import lines, models, plan_text


class Killed(TaskWorker):
    """Ends its process in the middle of the first job. mark: made by it."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def _line(self, unit: object) -> RunLine:
        line = super()._line(unit)  # type: ignore[arg-type]
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return line


@pytest.fixture
def place(tmp_path: Path, tiny: Callable[[str], Path]) -> Path:
    folder = models(tmp_path, tiny("llama"))
    (folder / "plan.toml").write_text(plan_text("apply", "[limits]\njobs = 1\n"))
    return folder


def jobs_in(place: Path) -> list[Job]:
    plan = read_plan(place / "plan.toml")
    return jobs_of(plan, named_sources(plan.sources, place), place, place / "plan")


def test_a_killed_worker_is_retried_and_every_unit_ends_once(place: Path) -> None:
    jobs, mark = jobs_in(place), place / "mark"
    with RunJournal(place / "plan" / "journal.jsonl") as journal:
        with Local(1).pool(partial(Killed, mark), retries=1) as pool:
            assert run_jobs(missing(jobs, journal), pool, journal)
        assert missing(jobs, journal) == []
    found = lines(place)
    assert Counter(one["key"] for one in found) == Counter(job.units[0].key for job in jobs)
    assert {one["failed"] for one in found} == {""}
    assert [one["result"].get("earlier", False) for one in found].count(True) == 1


def test_without_retries_it_fails_and_the_next_run_does_it(place: Path) -> None:
    jobs, mark = jobs_in(place), place / "mark"
    with RunJournal(place / "plan" / "journal.jsonl") as journal:
        with Local(1).pool(partial(Killed, mark), retries=0) as pool:
            assert run_jobs(missing(jobs, journal), pool, journal)
        assert [bool(one.failed) for one in journal.lines.values()].count(True) == 1
        left = missing(jobs, journal)
        assert len(left) == 1
        with Local(1).pool(partial(Killed, mark), retries=0) as pool:
            assert run_jobs(left, pool, journal)
        assert missing(jobs, journal) == []


def test_a_killed_run_goes_on_where_it_was(place: Path) -> None:
    command = [sys.executable, "-m", "ropeconv", "run", "plan.toml", "-q"]
    running = subprocess.Popen(command, cwd=place, start_new_session=True)
    end = time.monotonic() + 120
    journal = place / "plan" / "journal.jsonl"
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 3) and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = lines(place)
    assert 2 <= len(before) < 6
    time.sleep(1)  # its worker sees the end of its pipe
    done = run_in(place, "run", "plan.toml")
    assert done.returncode == 0, done.stderr
    after = lines(place)
    assert after[: len(before)] == before
    assert sorted(Counter(one["key"] for one in after).values()) == [1] * 6


def test_ctrl_c_ends_it_and_the_same_command_goes_on(place: Path) -> None:
    command = [sys.executable, "-m", "ropeconv", "run", "plan.toml", "-q"]
    running = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    journal = place / "plan" / "journal.jsonl"
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 2) and time.monotonic() < end:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (
        130, "ropeconv: stopped before its end; the same command goes on where it was\n"
    )  # fmt: skip
    assert run_in(place, "run", "plan.toml").returncode == 0
    assert len(lines(place)) == 6
