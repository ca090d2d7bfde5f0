"""Units run in order, through the journal, and a row that fails does not stop the others."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ropeconv.engines import Engine, Progress
from ropeconv.errors import RopeconvError, UsageError
from ropeconv.evaluate.asked import Asked
from ropeconv.evaluate.case import EVAL
from ropeconv.evaluate.evaluation import Evaluation, parse_measures
from ropeconv.evaluate.outcome import Outcome, Refusal
from ropeconv.evaluate.row import Row
from ropeconv.evaluate.texts.documents import Texts
from ropeconv.formats.journal import Journal

from .engines import ByHand, Computed, Loss, numbered

ASKED = Asked((16, 32), 16, windows=3, targets=4)
ROWS = {"base": lambda ids, at: 2.0, "better": lambda ids, at: 1.5}


def evaluation(runner: ByHand, measures: str = "growth") -> Evaluation:
    rows = [Row(name) for name in (*runner.engines, *runner.refused)]
    return Evaluation(rows, parse_measures(measures)[0], numbered(100), ASKED, runner)


def run(runner: ByHand, path: Path, progress: Progress | None = None, measures: str = "growth") -> Outcome:
    asked = evaluation(runner, measures)
    with Journal(path, EVAL, runner.source) as journal:
        return asked.run(journal, progress)


def test_all_rows_read_the_same_sequences(tmp_path: Path) -> None:
    found = run(ByHand(ROWS), tmp_path / "journal", measures="growth,position")
    pairs = {name: [one.pair for one in seen] for name, seen in found.observations.items()}
    assert pairs["base"] == pairs["better"]
    assert {one.value for one in found.observations["better"]} == {1.5}
    assert not found.refusals
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
    assert found.refusals == [Refusal("odd", "odd does not fit this model")]


def test_a_row_that_fails_while_it_runs_leaves_the_others(tmp_path: Path) -> None:
    def fails(ids: Sequence[int], at: int) -> float:
        raise RopeconvError("the engine has gone")

    found = run(ByHand({**ROWS, "bad": fails}), tmp_path / "journal")
    assert set(found.observations) == {"base", "better"}
    assert sorted(found.sentences(16)) == ["bad, growth at 1T, 2T: the engine has gone."]
    with pytest.raises(RopeconvError, match="no row was run: the engine has gone"):
        run(ByHand({"bad": fails}), tmp_path / "other")


def test_no_row_at_all_is_an_error() -> None:
    with pytest.raises(UsageError, match="no row can be run: odd does not fit this model"):
        evaluation(ByHand({}, refused=["odd"])).units  # noqa: B018


@pytest.mark.parametrize("swaps", [True, False])
def test_a_length_with_nan_has_no_cell_and_all_others_run(tmp_path: Path, swaps: bool) -> None:
    def broken(ids: Sequence[int], at: int) -> float:
        return float("nan") if len(ids) == 32 and at > 29 and ids[0] > 30 else 1.0

    found = run(ByHand({**ROWS, "broken": broken}, swaps), tmp_path / "journal", measures="growth,position")
    assert sorted(found.sentences(16)) == [
        f"broken, {name} at 2T: broken gives NaN or infinite logits at position 30 of 32; give --dtype float32 or "
        "bfloat16." for name in ("growth", "position")
    ]  # fmt: skip
    columns = {row: {(one.measure, one.column) for one in seen} for row, seen in found.observations.items()}
    assert columns["broken"] == {("growth", 16)}
    assert columns["base"] == columns["better"] > columns["broken"]
    assert {measure for measure, _ in columns["base"]} == {"growth", "position"}
    with Journal(tmp_path / "journal", EVAL, "source") as journal:
        values = [one.value for line in journal.lines.values() for one in line.observations]
    assert np.isfinite(values).all()


def test_one_model_is_let_go_before_the_next_is_loaded(tmp_path: Path) -> None:
    class Heavy(ByHand):
        alive = list[weakref.ref[Computed]]()

        @contextmanager
        def engine(self, row: Row) -> Iterator[Engine]:
            assert not any(one() for one in self.alive)
            self.alive.append(weakref.ref(loaded := Computed(ROWS[row.name])))
            yield loaded
            del loaded

    runner = Heavy(ROWS, swaps=False)
    run(runner, tmp_path / "journal")
    assert len(runner.alive) == 2


def test_numbers_of_an_earlier_run_with_other_texts_are_paired_by_the_tokens_of_this_one(tmp_path: Path) -> None:
    def of_text(ids: Sequence[int], at: int) -> float:
        return ids[at] / 1000  # which text, and which place in it

    def measured(names: Sequence[int], rows: dict[str, Loss]) -> Outcome:
        texts = numbered(100, 100)
        texts = Texts(tuple(texts.documents[name] for name in names), texts.tokenizer)
        runner = ByHand(rows)
        asked = Evaluation([Row(name) for name in rows], parse_measures("growth")[0], texts, ASKED, runner)
        with Journal(tmp_path / "journal", EVAL, runner.source) as journal:
            return asked.run(journal)

    measured([1], {"base": of_text})
    found = measured([0, 1], {"base": of_text, "worse": lambda ids, at: of_text(ids, at) + 0.5})
    pairs = {row: {one.pair: one.value for one in seen} for row, seen in found.observations.items()}
    assert len(pairs["base"]) == len(pairs["worse"]) == 6, "three windows of two lengths"
    for pair, value in pairs["base"].items():
        assert pairs["worse"][pair] - value == pytest.approx(0.5)
        assert pair[3] == int(value), "the document is that of this run"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grow", "choose cwe, fwe, growth, "),
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
