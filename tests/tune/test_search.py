"""The search on a model whose best schedule is known, and a search that goes on from its journal."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.engines import Progress
from ropeconv.errors import BadSource
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.tune import search
from ropeconv.tune.passes import Passes, Place
from ropeconv.tune.search import Task

from .models import SPEC, Known, task

DIVISORS = np.linspace(1, 5.5, 32) ** 1.1
BEST = replace(SPEC.current(), inv_freq=SPEC.current().inv_freq / DIVISORS, context=4096)


def away(schedule: Schedule, number: int) -> float:
    """The squared distance of log frequencies and of the log attention factor to BEST, and the number of the window."""
    logs = np.log(schedule.inv_freq / BEST.inv_freq)
    return float(1 + (logs**2).mean() + np.log(schedule.attention_factor) ** 2 + number)


class Killed(Exception):
    pass


class Counted:
    """The gradient of `away`, which fails after some calls."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.most, self.calls = most, 0

    def __call__(self, work: Task, at: Any, window: Any) -> list[float]:
        if self.calls == self.most:
            raise Killed
        self.calls += 1
        logs = np.array(at[:-1]) - np.log(DIVISORS)
        return [*(2 * logs / len(logs)), 2 * at[-1]]


def searched(
    monkeypatch: pytest.MonkeyPatch, slopes: Counted, journal: Path | None = None, **given: Any
) -> tuple[Recipe | None, Task]:
    monkeypatch.setattr(search, "slopes", slopes)
    with Place(journal).opened("model") if journal else nullcontext() as opened:
        work = task(Known(away), Passes(opened, "here"), **given)
        return search.search(work).recipe, work


def test_factors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found, work = searched(monkeypatch, Counted())
    assert found is not None
    assert work.best.name == "tuned factors"
    assert work.gain(work.best).mean < 0.3 * work.gain(replace(work.best, schedule=BEST)).mean < 0
    assert (len(work.trace), work.trace[-1]) == (60, work.gain(work.best).mean)
    assert searched(monkeypatch, Counted())[0] == found, "the same seed gives the same"
    kept, _ = searched(monkeypatch, Counted(), attention_factor=1.1, regularise=1.0)
    assert kept is not None
    assert kept.attention_factor == 1.1
    assert kept.method != found.method


@pytest.mark.parametrize(("stopped", "steps"), [(True, 1), (False, 31)], ids=["Ctrl-C", "nothing better"])
def test_a_search_ends_early(stopped: bool, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "slopes", lambda work, at, window: [0.0] * len(at))
    work = task(Known(away), progress=Progress(stopped=lambda: stopped))
    assert search.search(work) is work.first
    assert work.trace == [0.0] * steps


def test_no_pass_is_done_twice_and_the_result_is_that_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls, runs, found = Counted(), 0, 0, None
    expected, alone = searched(monkeypatch, whole, tmp_path / "alone.jsonl", steps=20)
    while found is None:
        slopes = Counted(29)
        with suppress(Killed):
            found, work = searched(monkeypatch, slopes, tmp_path / "j.jsonl", steps=20)
        runs, calls = runs + 1, calls + slopes.calls
    assert (found, work.trace) == (expected, alone.trace)
    assert (calls, runs) == (whole.calls, 3)


def test_other_settings_of_the_model_and_other_schedules_are_other_passes(tmp_path: Path) -> None:
    def computed(by: str, what: tuple[str, ...], value: float) -> float:
        with Place(tmp_path / "j.jsonl").opened("model") as journal:
            return Passes(journal, by).numbers(what, lambda: [value])[0]

    assert computed("cpu float32", ("loss", "a"), 1 / 3) == 1 / 3
    assert computed("cpu float32", ("loss", "a"), 2.0) == 1 / 3, "to the last digit"
    assert computed("cpu bfloat16", ("loss", "a"), 3.0) == 3.0
    assert computed("cpu float32", ("loss", "b"), 4.0) == 4.0


def test_journals_of_other_models_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Place(path).opened("model") as journal:
        Passes(journal, "here").numbers(["a"], lambda: [1.0])
    before = path.read_bytes()
    with pytest.raises(BadSource, match="is the journal of another model; give another --journal, or --fresh"):
        Place(path).opened("other")
    assert path.read_bytes() == before
    with Place(path, fresh=True).opened("other") as journal:
        assert journal.lines == {}
    assert path.with_name("j.jsonl.old").read_bytes() == before
