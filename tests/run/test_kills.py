"""Killed workers and killed runs: every unit ends once, and nothing that had ended is done again."""

import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from ropeconv.run.executors.local import Local
from ropeconv.run.jobs import RunJournal, RunLine, Unit
from ropeconv.run.runner import TaskWorker, missing, run_jobs

from ..support.in_process import command
from ..support.waiting import until
from .plans import jobs_in, lines, models, plan_text


class Killed(TaskWorker):
    """Ends its process in the middle of the first job. mark: made by it."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def _line(self, unit: Unit) -> RunLine:
        line = super()._line(unit)
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return line


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = models(tmp_path)
    (folder / "plan.toml").write_text(plan_text("apply", "[limits]\njobs = 1\n"))
    return folder


@pytest.mark.parametrize("retries", [1, pytest.param(0, marks=pytest.mark.nightly)])
def test_the_unit_of_a_killed_worker_is_tried_again_at_once_or_by_the_next_run(place: Path, retries: int) -> None:
    jobs = jobs_in(place)
    with RunJournal(place / "plan" / "journal.jsonl") as journal:
        for left in (1 - retries, 0):
            with Local(1).pool(partial(Killed, place / "mark"), retries=retries) as pool:
                assert run_jobs(missing(jobs, journal), pool, journal)
            assert len(missing(jobs, journal)) == left
    done = [line for line in lines(place) if not line["failed"]]
    assert Counter(line["key"] for line in done) == Counter(job[0].key for job in jobs)
    assert len(lines(place)) - len(done) == 1 - retries
    assert [line["result"].get("earlier", False) for line in done].count(True) == 1, "the output was there already"


@pytest.mark.parametrize("ending", [pytest.param(signal.SIGKILL, marks=pytest.mark.nightly), signal.SIGINT])
def test_a_run_that_is_ended_goes_on_where_it_was(place: Path, ending: signal.Signals) -> None:
    words = [sys.executable, "-m", "ropeconv", "run", "plan.toml", "-q"]
    running = subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, text=True, start_new_session=True)
    journal = place / "plan" / "journal.jsonl"
    until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2, "a unit in the journal")
    os.kill(running.pid, ending)
    _, stderr = running.communicate(timeout=60)  # its worker has the pipe too, and ends when it sees that it is alone
    if ending == signal.SIGINT:
        sentence = "ropeconv: stopped before its end; the same command continues\n"
        assert (running.returncode, stderr) == (130, sentence)
    before = lines(place)
    assert 1 <= len(before) < 6
    command(place, "run", "plan.toml", code=0)
    after = lines(place)
    assert after[: len(before)] == before
    assert sorted(Counter(line["key"] for line in after).values()) == [1] * 6
