"""What the numbers of an evaluation say: by hand, by simulation, and against published numbers."""

import math
from collections.abc import Mapping

import mpmath
import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.stats import binomtest

from ropeconv.bake.proof import (
    ALPHA,
    Sample,
    critical,
    independent_answers,
    judge,
    sample_of,
    wilson,
)
from ropeconv.features.evaluation.cases import EvaluationSizes, Observation
from ropeconv.features.evaluation.run import Refusal, RunOutcome
from ropeconv.features.evaluation.statistics import EvaluationSummary, summarise
from ropeconv.verbs.rows import Row

GATHERED = np.repeat([[1.0], [0.0]], 3, axis=0) * np.ones((6, 10))
"""Answers of six documents that are alike within each."""
SPREAD = np.tile([1.0, 0.0], (6, 5))
"""As many right answers, in every document."""
TEXT = np.random.default_rng(8).normal(3, 0.8, 20)
"""How hard the targets of each window are."""


def observed(
    values: ArrayLike, column: int = 1024, measure: str = "growth", metric: str = "loss"
) -> list[Observation]:
    """One observation per document and window. values: [documents, windows], or [windows] of one
    document.
    """
    rows = enumerate(np.atleast_2d(np.asarray(values, float)))
    return [
        Observation(measure, metric, column, n, window, float(v))
        for n, row in rows
        for window, v in enumerate(row)
    ]


def by_depth(values: Mapping[float, list[float]]) -> list[Observation]:
    """Observations of passkey in one document: by depth, the value of each window."""
    return [
        Observation("passkey", "accuracy", 2048, 0, window, value, depth, weight=5)
        for depth, row in values.items()
        for window, value in enumerate(row)
    ]


def summary(
    rows: Mapping[str, list[Observation]], trained: int = 1024, **outcome: object
) -> EvaluationSummary:
    lengths = sorted({point.column for points in rows.values() for point in points} | {trained})
    return summarise(
        RunOutcome(dict(rows), **outcome),
        [Row(name) for name in rows],
        EvaluationSizes(tuple(lengths), trained),
    )


def answers(values: object) -> Sample:
    return sample_of(observed(values, metric="accuracy"))


def test_windows_of_one_text_give_the_mean_and_the_error_of_a_textbook() -> None:
    values = np.random.default_rng(1).normal(3, 0.5, 8)
    sample = sample_of(observed(values))
    assert sample.mean == pytest.approx(values.mean())
    assert sample.error == pytest.approx(values.std(ddof=1) / math.sqrt(8))
    assert not sample.by_document
    assert sample_of(observed([2.0])).error is None, "a single window has no error"


def test_from_six_documents_on_they_are_the_units() -> None:
    values = np.random.default_rng(2).normal(3, 0.1, (9, 4)) + np.random.default_rng(3).normal(
        0, 1, (9, 1)
    )
    sample = sample_of(observed(values))
    four = sample_of(observed(values[:4]))
    assert (sample.by_document, sample.count, four.by_document, four.count) == (True, 9, False, 16)
    assert sample.error == pytest.approx(values.mean(1).std(ddof=1) / 3)


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 20, 0.0, 0.1611), (81, 263, 0.2553, 0.3662)],
)
def test_the_interval_of_a_share_is_the_published_one(
    right: int, count: int, low: float, high: float
) -> None:
    """The last one is in Newcombe 1998, table I."""
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-5)


def test_answers_that_are_alike_within_a_document_count_less() -> None:
    assert independent_answers(answers(GATHERED)) < 7
    assert independent_answers(answers(SPREAD)) == 60
    assert judge(answers(-GATHERED), True).error > 2 * judge(answers(-SPREAD), True).error


def test_all_answers_lost_is_a_difference_of_shares_only_with_enough_answers() -> None:
    """The spread between windows is 0 then, and an exact test needs ten answers."""
    few, many = (judge(answers(np.full(count, -1.0)), True).margin for count in (9, 10))
    assert many < 1 <= few


GUM = {
    0.05: {1: 12.71, 4: 2.78, 10: 2.23, 100: 1.984},
    1 - 0.9973: {
        1: 235.80,
        2: 19.21,
        3: 9.22,
        4: 6.62,
        5: 5.51,
        8: 4.28,
        10: 3.96,
        19: 3.45,
        50: 3.16,
        100: 3.077,
    },
}
"""By level, the critical values of Student's t by degrees of freedom, in table G.2 of JCGM
100:2008.
"""


@pytest.mark.parametrize(
    ("alpha", "freedom"), [(alpha, freedom) for alpha, row in GUM.items() for freedom in row]
)
def test_critical_values_are_the_published_ones(alpha: float, freedom: int) -> None:
    published = GUM[alpha][freedom]
    assert critical(freedom, alpha) == pytest.approx(
        published, abs=0.0051 if published < 100 else 0.02
    )


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 31, 500])
def test_beyond_a_critical_value_is_the_incomplete_beta_function(freedom: int) -> None:
    for alpha in (0.5, 0.05, ALPHA, 1e-6):
        t = critical(freedom, alpha)
        beyond = mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True)
        assert float(beyond) == pytest.approx(alpha, rel=1e-7)


@pytest.mark.parametrize(("right", "count"), [(0, 7), (3, 7), (250, 263)])
def test_the_interval_of_whole_answers_is_that_of_scipy(right: int, count: int) -> None:
    interval = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilson(right / count, count) == pytest.approx((interval.low, interval.high), abs=1e-6)


def curve(
    losses: dict[int, float], noise: float = 0.01, measure: str = "growth"
) -> list[Observation]:
    """losses: by length, what is added to the difficulty of each window."""
    random = np.random.default_rng(11)
    observations = []
    for length, loss in losses.items():
        observations += observed(TEXT + loss + random.normal(0, noise, len(TEXT)), length, measure)
    return observations


def held(losses: dict[int, float], trained: int = 1024, **settings: object) -> int | None:
    return summary({"base": curve(losses, **settings)}, trained).rows[0].holds_to


def test_the_first_row_has_no_difference_and_the_others_have_theirs() -> None:
    base, other = summary(
        {"base": observed([2.0, 4.0, 3.0]), "yarn:4": observed([2.5, 4.4, 3.6])}
    ).cells
    assert (base.value, base.difference, base.difference_error) == (3.0, None, None)
    assert (other.value, other.difference) == (pytest.approx(3.5), pytest.approx(0.5))
    assert other.difference_error == pytest.approx(0.1 / 3**0.5)
    assert other.error == pytest.approx(0.953939 / 3**0.5, rel=1e-5)
    assert (other.windows, other.documents, other.low) == (3, 1, None)


def test_a_measure_with_depths_has_a_cell_for_each_and_one_for_all() -> None:
    rows = {
        "base": by_depth({0.0: [1, 1], 1.0: [0, 1]}),
        "linear:4": by_depth({0.0: [0, 1], 1.0: [0, 0]}),
    }
    cells = summary(rows).cells
    assert [(cell.row, cell.depth, cell.value) for cell in cells] == [
        ("base", None, 0.75),
        ("base", 0.0, 1.0),
        ("base", 1.0, 0.5),
        ("linear:4", None, 0.25),
        ("linear:4", 0.0, 0.5),
        ("linear:4", 1.0, 0.0),
    ]
    assert cells[3].difference == -0.5
    assert 0 < cells[3].low < 0.25 < cells[3].high < 1


@pytest.mark.parametrize(
    ("losses", "noise", "to"),
    [
        ({256: 0.5, 1024: 0.1, 2048: 0.0, 4096: 0.004, 8192: 2.0}, 0.01, 4096),
        ({256: 0.5, 1024: 0.1, 2048: 0.0, 4096: 0.1}, 0.01, 2048),
        ({1024: 0.0, 2048: 1.0, 4096: 0.1}, 0.1, 1024),
        ({1024: 0.0, 4096: 0.1}, 0.1, 4096),  # without the length that fails before it
    ],
)
def test_a_row_holds_to_the_last_length_before_one_that_is_worse_than_its_best(
    losses: dict[int, float], noise: float, to: int
) -> None:
    assert held(losses, noise=noise) == to


def test_where_a_row_holds_to_needs_the_trained_length_and_six_windows() -> None:
    losses = {512: 0.0, 1024: 0.0}
    assert (held(losses), held(losses, trained=2048)) == (1024, None)
    short = [o for o in curve(losses) if o.window < 5]
    assert summary({"base": short}).rows[0].holds_to is None


def test_the_price_is_the_difference_of_growth_at_the_trained_length() -> None:
    rows = {"base": curve({1024: 0.0, 2048: 1.0}), "yarn:4": curve({1024: 0.125, 2048: 0.5})}
    assert summary(rows).rows[0].price is None
    prices = [summary(rows, trained=length).rows[1].price for length in (1024, 2048, 512)]
    assert prices == [pytest.approx(0.125), pytest.approx(-0.5), None]


@pytest.mark.parametrize(
    ("documents", "windows", "expected"),
    [
        (
            1,
            6,
            (
                "growth: the errors are between windows of 1 text and do not cover the difference"
                " between texts; give"
            ),
        ),
        (5, 3, "growth: the errors are between windows of 5 texts"),
        (6, 3, ""),
        (6, 1, ""),  # one window of each text: that is between texts
        (1, 1, "growth: fewer than 6 windows, so no difference is tested"),
    ],
)
def test_the_note_says_what_errors_are_between(documents: int, windows: int, expected: str) -> None:
    values = np.random.default_rng(0).normal(size=(documents, windows))
    (note,) = summary({"base": observed(values)}).notes or [""]
    assert note.startswith(expected)
    assert bool(note) == bool(expected)


def test_a_measure_whose_windows_cannot_be_more_has_no_advice_on_windows() -> None:
    def first_note(measure: str) -> str:
        return (summary({"base": observed([[0.0]], measure=measure)}).notes or [""])[0]

    assert first_note("speed") == ""
    assert "give at least 6 texts" in first_note("sliding")
    assert "increase --windows" in first_note("growth")


def test_questions_need_texts_that_are_longer_than_a_window() -> None:
    values = np.zeros((2, 6))
    for metric, needs_long_texts in (("accuracy", True), ("loss", False)):
        (sentence,) = summary({"base": observed(values, metric=metric)}).notes
        assert ("longest length" in sentence) is needs_long_texts


def test_the_tokens_of_longppl_need_many_targets() -> None:
    rows = {"base": observed([[0.0]], measure="longppl")}
    assert "--windows and --targets" in summary(rows).notes[0]


def test_the_note_counts_the_differences_that_chance_would_give() -> None:
    rows = {"base": observed(np.zeros(6))} | {
        f"row {n}": observed([n, 1, 2, 3, 1, 2]) for n in range(400)
    }
    assert (
        "400 differences were tested at p < 0.0027; chance would mark about 1.1."
        in summary(rows).notes
    )


def test_refusals_and_another_first_row_are_said() -> None:
    refusals = [
        Refusal("base", "it does not fit"),
        Refusal("linear:4", "the server is full", "position"),
    ]
    result = summary(
        {"base": [], "yarn:4": observed([1.0, 2.0]), "linear:4": observed([1.0, 2.5])},
        refusals=refusals,
    )
    assert result.rows[0].refused == "it does not fit"
    assert {
        "linear:4, position: the server is full.",
        "base did not run, so differences are to yarn:4.",
    } <= {*result.notes}
    assert [cell.row for cell in result.cells if cell.difference is not None] == ["linear:4"]
