"""A search that is killed goes on where it was, and finds what it would have found."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from ropeconv.engines import Progress
from ropeconv.errors import BadSource
from ropeconv.rope.recipe import Recipe
from ropeconv.tune import Tuned, Wanted, tune_model
from ropeconv.tune.passes import Passes, Place
from ropeconv.tune.searches import REGISTRY

from ..support.in_process import command
from ..support.waiting import until
from .models import Known, task
from .test_searches import needs_optuna, towards

SEARCHES = [
    pytest.param("factors", "evolution", id="evolution"),
    pytest.param("yarn", "tpe", id="tpe", marks=needs_optuna),
]


class Killed(Exception):
    pass


class Mortal(Known):
    """An engine that fails after some passes."""

    def __init__(self, known: Known, passes: int) -> None:
        super().__init__(known.loss)
        self.passes = passes

    def token_losses(self, ids: Any, targets: Any, progress: Progress | None = None) -> Any:
        if len(self.read) == self.passes:
            raise Killed
        return super().token_losses(ids, targets, progress)


def searched(engine: Known, path: Path | None, over: str, by: str) -> tuple[Recipe | None, list[float]]:
    """What a search finds, and its trace."""
    with Place(path).opened("model") if path else nullcontext() as journal:
        work = task(engine, over, passes=Passes(journal, "here"), steps=6)
        return REGISTRY[by].run(work).recipe, work.trace


def keys(journal: Path) -> set[str]:
    """The keys of a journal, which has each once."""
    found = [json.loads(line)["key"] for line in journal.read_text().splitlines()[1:]]
    assert len(found) == len(set(found))
    return set(found)


def target() -> Known:
    best = task(Known(lambda *given: 1.0)).start.formula("ntk").schedule
    found: Known = towards(best, noise=0.3)
    return found


@pytest.mark.parametrize(("over", "by"), SEARCHES)
def test_no_pass_is_done_twice_and_the_result_is_that_of_one_run(over: str, by: str, tmp_path: Path) -> None:
    whole, read, runs = target(), 0, 0
    found, expected = None, searched(whole, None, over, by)
    while found is None:
        engine = Mortal(target(), passes=29)
        with suppress(Killed):
            found = searched(engine, tmp_path / "j.jsonl", over, by)
        runs, read = runs + 1, read + len(engine.read)
    assert found == expected
    assert (read, runs >= 3) == (len(whole.read), True)
    assert len(keys(tmp_path / "j.jsonl")) == read


def test_other_settings_of_the_model_and_other_schedules_are_other_passes(tmp_path: Path) -> None:
    def computed(by: str, what: tuple[str, ...], value: float) -> float:
        with Place(tmp_path / "j.jsonl").opened("model") as journal:
            return Passes(journal, by).numbers(what, lambda: [value])[0]

    assert computed("cpu float32", ("loss", "a"), 1 / 3) == 1 / 3
    assert computed("cpu float32", ("loss", "a"), 2.0) == 1 / 3, "to the last digit"
    assert computed("cpu bfloat16", ("loss", "a"), 3.0) == 3.0
    assert computed("cpu float32", ("loss", "b"), 4.0) == 4.0
    assert computed("cpu float32", ("gradient", "a"), 5.0) == 5.0


def test_journals_of_others_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Place(path).opened("model") as journal:
        Passes(journal, "here").numbers(["a"], lambda: [1.0])
        with pytest.raises(BadSource, match="another run writes to"):
            Place(path).opened("model")
    before = path.read_bytes()
    with pytest.raises(BadSource, match="is the journal of another model; give another --journal, or --fresh"):
        Place(path).opened("other")
    assert path.read_bytes() == before
    with Place(path, fresh=True).opened("other") as journal:
        assert journal.lines == {}
    assert path.with_name("j.jsonl.old").read_bytes() == before
    path.write_text('{"ropeconv_eval": 2, "source": "model"}\n')
    with pytest.raises(BadSource, match="is not a journal of `ropeconv tune`"):
        Place(path).opened("model")


@pytest.mark.nightly
def test_a_search_by_gradient_goes_on(trained: Path, tmp_path: Path) -> None:
    def tuned(journal: Path, steps: int = 0) -> Tuned:
        """With `steps`, of a search that is killed behind them."""

        def advance(tokens: int) -> None:
            seen.append(tokens)
            if steps and len(seen) == steps:
                raise Killed

        seen: list[int] = []
        wanted = Wanted("256", windows=4, steps=4, targets=16, start="ntk", regularise=0.01)
        return tune_model(trained / "model", [trained / "texts" / "*.txt"], wanted, Progress(advance=advance), journal)

    journal = tmp_path / "j.jsonl"
    for steps in (1, 3):
        with suppress(Killed):
            tuned(journal, steps)
    assert len(keys(journal)) == 3 * 4 + 4, "gradients of three steps, and the formula to begin with"
    found, expected = tuned(journal), tuned(tmp_path / "other.jsonl")
    assert (found.recipe, found.trace, found.rows) == (expected.recipe, expected.trace, expected.rows)
    assert keys(journal) == keys(tmp_path / "other.jsonl")


@pytest.mark.nightly
def test_a_killed_command_goes_on(trained: Path, tmp_path: Path) -> None:
    given = ["tune", str(trained / "model"), "--text", f"{trained}/texts/*.txt", "--context", "256", "--windows", "4",
             "--targets", "16", "--steps", "3", "--by", "evolution", "--journal", "j.jsonl"]  # fmt: skip
    running = subprocess.Popen([sys.executable, "-m", "ropeconv", *given, "-o", "killed.json"], cwd=tmp_path)
    journal = tmp_path / "j.jsonl"
    until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 40, "forty passes")
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "killed.json").exists()
    resumed = command(tmp_path, *given, "--json", code=0)
    assert "passes are in the journal, j.jsonl." in resumed.stderr
    alone = command(tmp_path, *given[:-1], "alone.jsonl", "--json", code=0)
    assert json.loads(resumed.stdout) == json.loads(alone.stdout)
    assert keys(journal) == keys(tmp_path / "alone.jsonl")
