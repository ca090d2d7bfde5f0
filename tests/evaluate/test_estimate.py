"""Costs are found from short sequences, and a budget says what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ropeconv.engines.engine import Engine, Progress, TokenLosses
from ropeconv.errors import UsageError
from ropeconv.evaluate.cases import Case, EvaluationSizes
from ropeconv.evaluate.evaluation import Cost, estimate, probe, within

TRUE = Cost(0.01, 2e-4, 3e-8, 1e-3)


class Timed(Engine):
    """Takes the time that a cost says, on a clock of its own."""

    gives = frozenset({"token_losses", "tokens"})
    runtime = "none"

    def __init__(self, cost: Cost) -> None:
        self.cost, self.now, self.seen = cost, 0.0, set[tuple[int, ...]]()

    def token_losses(self, ids: Sequence[int], targets: Sequence[int], progress: Progress | None = None) -> TokenLosses:
        self.now += self.cost.of(case(len(ids), len(targets)))
        return TokenLosses(np.zeros(len(targets)), np.zeros(len(targets), bool))

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        assert tuple(ids) not in self.seen, "a server answers a second time from its cache"
        self.seen.add(tuple(ids))
        self.now += self.cost.fixed + self.cost.token * len(ids) + 50 * self.cost.target * count
        return [0] * count


def case(length: int, targets: int = 16, window: int = 0) -> Case:
    ids = np.arange(length, dtype=np.int32)
    return Case("growth", length, 0, window, ids, ids[-targets:])


def probed(cost: Cost, *cases: Case) -> dict[bool, Cost]:
    engine = Timed(cost)
    return probe(engine, cases, clock=lambda: engine.now)


def test_a_cost_with_all_terms_is_found() -> None:
    asked, long = replace(case(4096), generate=24), case(65536, 256)
    found = probed(TRUE, case(4096), asked)
    assert found[False].of(long) == pytest.approx(TRUE.of(long), rel=1e-6)
    generating = TRUE.fixed + TRUE.token * (4096 - 16) + 50 * TRUE.target * 24
    assert found[True].of(asked) == pytest.approx(generating, rel=1e-6)
    assert set(probed(TRUE, asked)) == {True}, "losses are not asked for"


def test_an_estimate_is_the_sum_over_cases() -> None:
    found = estimate([case(100), case(200)], {False: Cost(1.0, 0.1, 0.0, 0.0)})
    assert (found.seconds, found.tokens, found.sequences) == (pytest.approx(32.0), 300, 2)
    assert found.sentence == "2 sequences with 300 tokens take about 32 s."
    assert estimate([case(100)], {}).sentence == "1 sequence with 100 tokens will take an unknown time."


def test_a_budget_says_what_fits() -> None:
    asked, cost = EvaluationSizes((100, 400), 100, windows=4), {False: Cost(0.0, 1.0, 0.0, 0.0)}
    cases = [case(length, window=window) for window in range(4) for length in asked.lengths]  # 2000 s
    for budget in (2001, 0):
        within(budget, estimate(cases, cost), cases, asked)
    for budget, words in (
        (1100, "--windows 2$"), (300, "--windows 3 and --lengths up to 1T"), (50, "a smaller model, or a GPU"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            within(budget, estimate(cases, cost), cases, asked)
