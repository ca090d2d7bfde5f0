"""What `run` takes for done: outputs as they were written; and units and runs that hang or are
killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ropeconv.bake.apply import apply, make_plan
from ropeconv.convert.target import Target
from ropeconv.features.run.executors.local import Local
from ropeconv.features.run.jobs import RunJournal, RunLine, Unit
from ropeconv.features.run.report import preview_job
from ropeconv.features.run.runner import TaskWorker, missing_jobs, run_jobs
from ropeconv.features.run.tasks import TASKS
from ropeconv.models.open import open_source
from ropeconv.verbs.rows import parse_rows

from ...support.gguf_files import write
from ...support.in_process import command
from ...support.run_plans import models, plan_text
from ...support.waiting import until
from .plans import EVAL, jobs_in, lines

TARGETS = '[[targets]]\n[[targets]]\nname = "g"\nto = "gguf"\nouttype = "f32"\n'
DAMAGED = "move it away and run the plan again, which writes it anew"
OTHER = "exists and is not the output of this unit; move it away, or give the plan another `out`"
FOLDER, GGUF = "a-yarn4", "a-yarn4-g.gguf"


def again(place: Path, verify: bool = False) -> list[RunLine]:
    """Runs what is not done, and returns the lines of it."""
    jobs = jobs_in(place)
    lines = list[RunLine]()
    with RunJournal(place / "plan" / "journal.jsonl") as journal:
        for unit in [unit for job in jobs for unit in job] if verify else ():
            journal.verify(unit)
        for job in missing_jobs(jobs, journal):
            lines += [journal.add(line) for line in TaskWorker()(job)]
    return lines


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = models(tmp_path_factory.mktemp("done"), "a")
    (folder / "plan.toml").write_text(plan_text("apply eval", TARGETS + EVAL, recipes='"yarn:4"'))
    assert [line.failed for line in again(folder)] == ["", "", ""]
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Iterator[Path]:
    """A place of its own; the journal has absolute paths, so the whole takes the place of the
    first.
    """
    kept = tmp_path / "kept"
    subprocess.run(["cp", "-rp", str(finished), str(kept)], check=True)
    yield finished
    shutil.rmtree(finished)
    subprocess.run(["cp", "-rp", str(kept), str(finished)], check=True)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)


def foreign(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
        path = path / "thesis.txt"
    path.write_text("mine")


def of_another_recipe(path: Path) -> None:
    shutil.rmtree(path)
    recipe = parse_rows("yarn:2")[0].recipe
    assert recipe is not None
    apply(
        make_plan(open_source(str(path.parent.parent / "models" / "a")), recipe, Target(out=path)),
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        (f"{FOLDER}/model.safetensors", cut, DAMAGED),
        (f"{FOLDER}/config.json", cut, DAMAGED),
        (FOLDER, foreign, OTHER),
        (FOLDER, of_another_recipe, OTHER),
        (GGUF, cut, OTHER),
        (GGUF, foreign, OTHER),
    ],
)
def test_what_is_not_as_it_was_written_is_not_done(
    place: Path, name: str, damage: Callable[[Path], None], reason: str
) -> None:
    damage(place / "plan" / name)
    before = {
        path: path.read_bytes()
        for path in (place / "plan" / name.split("/")[0]).rglob("*")
        if path.is_file()
    }
    (line,) = again(place)
    assert (line.task, reason in line.failed) == ("apply", True), line.failed
    assert all(path.read_bytes() == data for path, data in before.items()), (
        "nothing of it was replaced"
    )
    assert again(place)[0].failed == line.failed, "and not the next time either"
    shutil.move(place / "plan" / name.split("/")[0], place / "away")
    (line,) = again(place)
    assert line.failed == ""
    assert again(place) == []


def test_bytes_are_compared_where_that_is_asked_for(place: Path) -> None:
    assert again(place, verify=True) == []
    for path in (place / "plan" / FOLDER / "model.safetensors", place / "plan" / GGUF):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    assert again(place) == []
    done = command(place, "run", "plan.toml", "--verify", code=1)
    assert ("1 done, 2 failed, 0 not" in done.stdout, done.stdout.count(DAMAGED)) == (
        True,
        2,
    ), done.stdout


def test_a_unit_that_hangs_fails_at_its_limit_and_the_next_one_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_in(place)
    worker = TaskWorker(0.2)
    begun = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setitem(TASKS, "apply", lambda unit, tools: time.sleep(60))
        (line,) = worker(jobs[0])
    assert "unit_timeout" in line.failed
    assert time.monotonic() - begun < 30
    worker.limit = 600.0
    assert worker(jobs[0])[0].failed == ""


# Killed workers and killed runs: every unit ends once, and nothing that had ended is done again


class Killed(TaskWorker):
    """Ends its process in the middle of the first job. mark: made by it."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def _run(self, unit: Unit) -> RunLine:
        line = super()._run(unit)
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return line


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    folder = models(tmp_path)
    (folder / "plan.toml").write_text(plan_text("apply", "[limits]\njobs = 1\n"))
    return folder


@pytest.mark.parametrize("retries", [1, pytest.param(0, marks=pytest.mark.nightly)])
def test_the_unit_of_a_killed_worker_is_tried_again_at_once_or_by_the_next_run(
    planned: Path, retries: int
) -> None:
    jobs = jobs_in(planned)
    with RunJournal(planned / "plan" / "journal.jsonl") as journal:
        for left in (1 - retries, 0):
            with Local(1).pool(partial(Killed, planned / "mark"), retries=retries) as pool:
                assert run_jobs(missing_jobs(jobs, journal), pool, journal)
            assert len(missing_jobs(jobs, journal)) == left
    done = [line for line in lines(planned) if not line["failed"]]
    assert Counter(line["key"] for line in done) == Counter(job[0].key for job in jobs)
    assert len(lines(planned)) - len(done) == 1 - retries
    assert [line["result"].get("earlier", False) for line in done].count(True) == 1, (
        "the output was there already"
    )


@pytest.mark.parametrize(
    "ending", [pytest.param(signal.SIGKILL, marks=pytest.mark.nightly), signal.SIGINT]
)
def test_a_run_that_is_ended_goes_on_where_it_was(planned: Path, ending: signal.Signals) -> None:
    words = [sys.executable, "-m", "ropeconv", "run", "plan.toml", "-q"]
    running = subprocess.Popen(
        words, cwd=planned, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal = planned / "plan" / "journal.jsonl"
    until(
        lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2, "a unit in the journal"
    )
    os.kill(running.pid, ending)
    _, stderr = running.communicate(
        timeout=60
    )  # its worker has the pipe too, and ends when it sees that it is alone
    if ending == signal.SIGINT:
        sentence = "ropeconv: stopped before its end; the same command continues\n"
        assert (running.returncode, stderr) == (130, sentence)
    before = lines(planned)
    assert 1 <= len(before) < 6
    command(planned, "run", "plan.toml", code=0)
    after = lines(planned)
    assert after[: len(before)] == before
    assert sorted(Counter(line["key"] for line in after).values()) == [1] * 6


def test_a_target_for_ollama_has_a_modelfile(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    target = '[[targets]]\nruntimes = ["ollama"]\n'
    text = plan_text("apply", target, sources='"model.gguf"', recipes='"yarn:4"')
    (tmp_path / "plan.toml").write_text(text)
    modelfile = tmp_path / "plan" / "model-yarn4.Modelfile"
    assert [line.failed for line in again(tmp_path)] == [""]
    assert "num_ctx 256" in modelfile.read_text()

    # an output of a killed run is kept, and gets the Modelfile that it has not
    modelfile.unlink()
    (tmp_path / "plan" / "journal.jsonl").unlink()
    assert [line.failed for line in again(tmp_path)] == [""]
    assert modelfile.exists()

    # a preview says that another Modelfile is in its place
    modelfile.write_text("FROM ./mine.gguf\n")
    (job,) = jobs_in(tmp_path)
    assert "Modelfile" in preview_job(job).problem
