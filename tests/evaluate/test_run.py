"""Units run in order, through the journal, and a row that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ropeconv.engines import Progress
from ropeconv.errors import RopeconvError, UsageError
from ropeconv.evaluate.asked import Asked
from ropeconv.evaluate.evaluation import Evaluation, parse_measures
from ropeconv.evaluate.journal import Journal
from ropeconv.evaluate.row import Row
from ropeconv.evaluate.run import NotFinite, Outcome

from .engines import ByHand, Loss, numbered

ASKED = Asked((16, 32), 16, windows=3, targets=4)
ROWS = {"base": lambda ids, at: 2.0, "better": lambda ids, at: 1.5}


def evaluation(runner: ByHand, measures: str = "growth") -> Evaluation:
    rows = [Row(name) for name in (*runner.engines, *runner.refused)]
    return Evaluation(rows, parse_measures(measures)[0], numbered(100), ASKED, runner)


def run(runner: ByHand, path: Path, progress: Progress | None = None, measures: str = "growth") -> Outcome:
    asked = evaluation(runner, measures)
    with Journal(path, runner.source) as journal:
        return asked.run(journal, progress)


def test_all_rows_read_the_same_sequences(tmp_path: Path) -> None:
    found = run(ByHand(ROWS), tmp_path / "journal", measures="growth,position")
    pairs = {name: [one.pair for one in seen] for name, seen in found.observations.items()}
    assert pairs["base"] == pairs["better"]
    assert {one.value for one in found.observations["better"]} == {1.5}
    assert not found.refused
    assert not found.stopped


@pytest.mark.parametrize("swaps", [True, False])
def test_rows_alternate_where_swapping_is_cheap_and_only_there(tmp_path: Path, swaps: bool) -> None:
    runner = ByHand(ROWS, swaps=swaps)
    run(runner, tmp_path / "journal")
    assert runner.opened == (["base", "better"] * 6 if swaps else ["base", "better"])


def test_a_run_goes_on_where_it_was_and_ends_the_same(tmp_path: Path) -> None:
    def noisy(ids: Sequence[int], at: int) -> float:
        return float(np.sin(ids[at] * len(ids)))

    rows: dict[str, Loss] = {"base": noisy, "other": lambda ids, at: noisy(ids, at) + 0.1}
    whole = run(ByHand(rows), tmp_path / "whole")
    stops = iter([False] * 4 + [True])
    first, second = ByHand(rows), ByHand(rows)
    partial = run(first, tmp_path / "journal", Progress(stopped=lambda: next(stops)))
    assert partial.stopped
    assert partial.cases == 5
    resumed = run(second, tmp_path / "journal")
    assert resumed.observations == whole.observations
    assert not resumed.stopped
    read = [len(engine.asked) for runner in (first, second) for engine in runner.engines.values()]
    assert sum(read) == whole.cases == 12, "no sequence is read twice"


def test_tokens_found_in_the_journal_count_as_progress(tmp_path: Path) -> None:
    for _ in range(2):
        total, done = list[int](), list[int]()
        run(ByHand(ROWS), tmp_path / "journal", Progress(total=total.append, advance=done.append))
        assert total == [sum(done)] == [2 * 3 * (16 + 32)]


def test_a_row_that_is_refused_leaves_the_others(tmp_path: Path) -> None:
    found = run(ByHand(ROWS, refused=["odd"]), tmp_path / "journal")
    assert set(found.observations) == {"base", "better"}
    assert found.refused == {"odd": "odd does not fit this model"}


def test_a_row_that_fails_while_it_runs_leaves_the_others(tmp_path: Path) -> None:
    def fails(ids: Sequence[int], at: int) -> float:
        raise RopeconvError("the engine has gone")

    found = run(ByHand({**ROWS, "bad": fails}), tmp_path / "journal")
    assert set(found.observations) == {"base", "better"}
    assert found.refused == {"bad": "the engine has gone"}
    with pytest.raises(RopeconvError, match="no row was run: the engine has gone"):
        run(ByHand({"bad": fails}), tmp_path / "other")


def test_no_row_at_all_is_an_error() -> None:
    with pytest.raises(UsageError, match="no row can be run: odd does not fit this model"):
        evaluation(ByHand({}, refused=["odd"])).units  # noqa: B018


def test_logits_that_are_no_numbers_end_the_run_and_are_not_kept(tmp_path: Path) -> None:
    def broken(ids: Sequence[int], at: int) -> float:
        return float("nan") if len(ids) == 32 and at > 29 else 1.0

    with pytest.raises(NotFinite, match="broken gives logits that are no numbers at position 30 of 32"):
        run(ByHand({"broken": broken}), tmp_path / "journal")
    with Journal(tmp_path / "journal", "source") as journal:
        assert len(journal.done) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grow", "choose growth"),
        ("growth,growth", "twice"),
        ("growth:3", "only sliding"),
        ("sliding:0", "only sliding"),
    ],
)
def test_measures_that_are_not_known(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_measures(text)


def test_measures_with_a_stride() -> None:
    found, stride = parse_measures("growth, sliding:128")
    assert ([one.name for one in found], stride) == (["growth", "sliding"], 128)
