"""The search, its scorer and its journal, on a model whose loss is a known function of its
schedule.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.bake.proof import critical
from ropeconv.engines.engine import Engine, Progress, TokenLosses
from ropeconv.errors import BadSource, NotFinite
from ropeconv.features.evaluation.cases import Case, EvaluationSizes
from ropeconv.features.evaluation.options import TuneOptions
from ropeconv.features.evaluation.texts import count_for_test
from ropeconv.features.evaluation.tune import search
from ropeconv.features.evaluation.tune.result import FORMULAS, Start
from ropeconv.features.evaluation.tune.scorer import (
    TUNE,
    Losses,
    Passes,
    Price,
    Scorer,
    TextWindow,
    can_be_tested,
    measurement,
    split,
    windows,
)
from ropeconv.features.evaluation.tune.search import Task
from ropeconv.formats.journal import Journal
from ropeconv.rope.forms import Plain
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

from ..engines import numbered

SPEC = RopeSpec(
    head_dim=64, rotary_dim=64, form=Plain(10_000.0), original_context=1024, context=1024
)
BASE = SPEC.current()
OTHER = replace(BASE, inv_freq=BASE.inv_freq / 2)
DIVISORS = np.linspace(1, 5.5, 32) ** 1.1
BEST = replace(BASE, inv_freq=BASE.inv_freq / DIVISORS, context=4096)
Loss = Callable[[Schedule, int], float]


class Known(Engine):
    """An engine whose tokens all lose the same, by a function of the schedule and of the number of
    the window.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.schedule = SPEC.current()
        self.read = list[int]()

    def token_losses(self, ids: Any, targets: Any, progress: Progress | None = None) -> TokenLosses:
        self.read.append(ids[0])
        return TokenLosses(
            np.full(len(targets), self.loss(self.schedule, ids[0])), np.ones(len(targets), bool)
        )

    def generate(self, ids: Any, count: int) -> list[int]:
        raise NotImplementedError

    @contextmanager
    def patched(self, schedule: Schedule) -> Iterator[Engine]:
        self.schedule = schedule
        yield self


def window(number: int, text: int | None = None, place: int = 0) -> TextWindow:
    """A window whose tokens are its number, with four targets inside the trained context and four
    beyond it; by default in a text of its own.
    """
    ids = np.full(16, number, np.int32)
    targets = np.arange(8, 16, dtype=np.int32)
    document = number if text is None else text
    return TextWindow(Case("tune", 16, document, place, ids, targets), 4)


def task(
    engine: Known, passes: Passes = Passes(), progress: Progress = Progress(), **given: Any
) -> Task:
    start = Start(SPEC, 4096, lambda recipe: recipe.schedule(SPEC))
    scorer = Scorer(engine, [window(number) for number in range(6)], Price(inside=0.0), passes)
    formulas = sorted(
        map(start.formula, FORMULAS),
        key=lambda formula: float(scorer.values(formula.schedule).mean()),
    )
    return Task(start, scorer, formulas, TuneOptions("4k", **given), progress)


def test_a_loss_is_that_beyond_with_the_prices_of_the_others() -> None:
    losses = Losses(np.array([1.0, 3.0, 4.0, 6.0, 8.0]), inside_count=2, needle=0.5)
    assert losses.weighted_sum(Price(inside=0.3, needle=2.0)) == pytest.approx(
        6 + 0.3 * 2 + 2 * 0.5
    )


def test_a_window_is_read_once_for_each_schedule() -> None:
    engine = Known(lambda schedule, number: number + schedule.inv_freq[0])
    scorer = Scorer(engine, [window(number) for number in range(3)], Price(0.0))
    assert scorer.values(BASE).tolist() == [1, 2, 3]
    assert scorer.values(OTHER, 2).tolist() == [0.5, 1.5]
    assert scorer.values(OTHER).tolist() == [0.5, 1.5, 2.5]
    assert engine.read == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("worse", "read"), [(1.0, 6), (0.0, 12), (-1.0, 12)], ids=["clearly worse", "alike", "better"]
)
def test_a_race_ends_early_for_what_is_worse_beyond_its_error(worse: float, read: int) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 12)

    def loss(schedule: object, number: int) -> float:
        return float(number) if schedule is BASE else float(number + worse + noise[number])

    difference = Scorer(
        Known(loss), [window(number) for number in range(12)], Price(0.0)
    ).compare_with_best(OTHER, BASE)
    assert len(difference.values) == read
    assert difference.mean == pytest.approx(worse, abs=0.1)


@pytest.mark.parametrize(
    ("values", "error", "decided"),
    [
        # 63 and 9 errors; two numbers that alternate need about ten by the bootstrap
        ([-10, -11] * 5, math.sqrt(1 / 36), True),
        ([-1, -2] * 5, math.sqrt(1 / 36), False),
        ([0, -2, 1, -3, 0] * 2, math.sqrt(21.6 / 90), False),
        ([-5] * 5, 0.0, False),
        ([-5], None, False),
    ],
)
def test_the_error_is_that_of_paired_differences(
    values: list[float], error: float | None, decided: bool
) -> None:
    engine = Known(lambda schedule, number: number * (schedule is OTHER))
    texts = [window(int(value), text) for text, value in enumerate(values)]
    scorer = Scorer(engine, texts, Price(0.0))
    difference = scorer.difference(OTHER, BASE)
    assert (difference.error, difference.decided) == (pytest.approx(error), decided)


# The differences of eight windows of a text, in its order. Two such texts are 16 windows with the
# correlation 2 / 16 of a window with the one before it, or with a negative one, which counts as 0.
ALIKE = (1, 1, -1, -1, 1, 1, -1, -1)
UNLIKE = (1, -1, 1, -1, 1, -1, 1, -1)


@pytest.mark.parametrize("values", [ALIKE, UNLIKE], ids=["alike", "unlike"])
@pytest.mark.parametrize("order", ["in turn from both texts", "one text after the other"])
def test_windows_of_a_text_that_are_alike_count_as_fewer(
    values: tuple[int, ...], order: str
) -> None:
    # by `effective_count`: n (1 - r) / (1 + r) with r = measured + (1 + 4 measured) / n + 0.5 / 4
    correlation = 0.0
    if values is ALIKE:
        measured = 2 / 16
        correlation = measured + (1 + 4 * measured) / 16 + 0.5 / 4
    independent = 16 * (1 - correlation) / (1 + correlation)

    by_turn = [window(values[turn], text, 2 * turn + text) for turn in range(8) for text in (0, 1)]
    if order == "one text after the other":
        by_turn.sort(key=lambda one: one.text.document)
    engine = Known(lambda schedule, number: number * (schedule is OTHER))
    difference = Scorer(engine, by_turn, Price(0.0)).difference(OTHER, BASE)
    assert difference.effective_count == pytest.approx(independent)

    row = measurement(
        by_turn,
        np.array([float(one.text.ids[0]) for one in by_turn]),
        np.zeros(16),
    )
    assert row.error == pytest.approx(math.sqrt(16 / 16 / 15))
    assert row.margin == pytest.approx(
        critical(independent - 1) * row.error / math.sqrt(independent / 16)
    )


@pytest.mark.parametrize(
    ("texts", "given", "tested"),
    [
        (1, 5, 0),
        (2, 6, 6),
        (6, 5, 0),
        (6, 6, 6),
        (6, 11, 6),  # five texts count twice, which is worth 5.8 equal texts
        (6, 16, 12),
        (7, 8, 8),  # one counts twice: 6.4
    ],
)
def test_held_out_windows_are_as_many_as_can_be_tested(texts: int, given: int, tested: int) -> None:
    taken = [window(number, number % texts, number) for number in range(given)]
    chosen = taken[: count_for_test([one.text.document for one in taken])]
    assert can_be_tested(chosen) == (tested > 0)
    values = np.arange(float(tested))
    if tested:
        assert len(chosen) == tested
        assert measurement(chosen, values, np.zeros(tested)).margin is not None
    rest = np.arange(float(given))
    assert (measurement(taken, rest, 0 * rest).margin is None) == (tested < given or tested == 0)


def test_losses_that_are_not_numbers_are_refused() -> None:
    scorer = Scorer(Known(lambda schedule, number: math.nan), [window(0)], Price())
    with pytest.raises(NotFinite, match="--dtype float32"):
        scorer.values(BASE)


def away(schedule: Schedule, number: int) -> float:
    """The squared distance of log frequencies and of the log attention factor to BEST, and the
    number of the window.
    """
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
    with Journal(journal, TUNE, "model") if journal else nullcontext() as opened:
        work = task(Known(away), Passes(opened, "here"), **given)
        return search.search(work).recipe, work


def test_factors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, work = searched(monkeypatch, Counted())
    assert recipe is not None
    assert work.best.name == "tuned factors"
    assert work.gain(work.best).mean < 0.3 * work.gain(replace(work.best, schedule=BEST)).mean < 0
    assert (len(work.trace), work.trace[-1]) == (60, work.gain(work.best).mean)
    assert searched(monkeypatch, Counted())[0] == recipe, "the same seed gives the same"
    kept, _ = searched(monkeypatch, Counted(), attention_factor=1.1, regularise=1.0)
    assert kept is not None
    assert kept.attention_factor == 1.1
    assert kept.method != recipe.method


@pytest.mark.parametrize(
    ("stopped", "steps"), [(True, 1), (False, 31)], ids=["Ctrl-C", "nothing better"]
)
def test_a_search_ends_early(stopped: bool, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "slopes", lambda work, at, window: [0.0] * len(at))
    work = task(Known(away), progress=Progress(stopped=lambda: stopped))
    assert search.search(work) is work.first_formula
    assert work.trace == [0.0] * steps


def test_no_pass_is_done_twice_and_the_result_is_that_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Counted()
    calls = 0
    runs = 0
    recipe = None
    expected, alone = searched(monkeypatch, whole, tmp_path / "alone.jsonl", steps=20)
    while recipe is None:
        slopes = Counted(29)
        with suppress(Killed):
            recipe, work = searched(monkeypatch, slopes, tmp_path / "j.jsonl", steps=20)
        runs = runs + 1
        calls = calls + slopes.calls
    assert (recipe, work.trace) == (expected, alone.trace)
    assert (calls, runs) == (whole.calls, 3)


def test_other_settings_of_the_model_and_other_schedules_are_other_passes(tmp_path: Path) -> None:
    def computed(by: str, key: tuple[str, ...], value: float) -> float:
        with Journal(tmp_path / "j.jsonl", TUNE, "model") as journal:
            return Passes(journal, by).read_or_run(key, lambda: [value]).numbers[0]

    assert computed("cpu float32", ("loss", "a"), 1 / 3) == 1 / 3
    assert computed("cpu float32", ("loss", "a"), 2.0) == 1 / 3, "to the last digit"
    assert computed("cpu bfloat16", ("loss", "a"), 3.0) == 3.0
    assert computed("cpu float32", ("loss", "b"), 4.0) == 4.0


def test_journals_of_other_models_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path, TUNE, "model") as journal:
        Passes(journal, "here").read_or_run(["a"], lambda: [1.0])
    before = path.read_bytes()
    with pytest.raises(BadSource, match="another model; .*--journal"):
        Journal(path, TUNE, "other")
    assert path.read_bytes() == before
    with Journal(path, TUNE, "other", fresh=True) as journal:
        assert journal.lines == {}
    assert path.with_name("j.jsonl.old").read_bytes() == before


# Which text is held out, and what of a window is predicted


def test_every_third_text_is_held_out() -> None:
    search, held, note = split(numbered(100, 100, 100, 5, 100, 100, 100), 64)
    assert [document.name for document in search.documents] == [
        "text 0",
        "text 1",
        "text 4",
        "text 5",
    ]
    assert [document.name for document in held.documents] == ["text 2", "text 6"]
    assert note.startswith("2 of 6 texts")
    assert "do not cover" in note, "the errors of so few texts are between windows"
    *_, note = split(numbered(*[100] * 18), 64)
    assert note.startswith("6 of 18 texts")
    assert "do not cover" not in note


def test_of_few_texts_the_last_third_of_each_is_held_out() -> None:
    search, held, note = split(numbered(300, 90), 64)
    assert [len(document.ids) for document in search.documents] == [200]
    assert [document.ids[[0, -1]].tolist() for document in held.documents] == [[200, 299]]
    assert "do not cover" in note
    with pytest.raises(
        BadSource,
        match=r"third .* 30 tokens, .* 64; .*--context",
    ):
        split(numbered(90), 64)


def test_targets_lie_evenly_inside_the_trained_context_and_beyond_it() -> None:
    text_windows = windows(
        numbered(200, 200), EvaluationSizes((64,), trained=16, windows=3, targets=5)
    )
    assert len(text_windows) == 3
    assert {len(text_window.text.ids) for text_window in text_windows} == {64}
    assert text_windows[0].text.targets.tolist() == [1, 4, 8, 12, 15, 16, 28, 40, 51, 63]
    assert text_windows[0].inside_count == 5
    assert [text_window.text.document for text_window in text_windows] == [
        0,
        1,
        0,
    ], "in turn from all texts"
    assert all(text_window.needle is None for text_window in text_windows)
    few = windows(numbered(200), EvaluationSizes((64,), trained=60, windows=1, targets=50))[0]
    assert few.text.targets.tolist()[few.inside_count :] == [60, 61, 62, 63], "there are no more"
