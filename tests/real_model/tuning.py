"""Frequencies for a real model beyond its trained context: more than an hour on two cores, for `scripts/test --all`."""

from __future__ import annotations

import pytest

from ropeconv.evaluate.result import decided
from ropeconv.tune import Tuned
from scripts.bench_tune import tune_real
from scripts.real_model import RealModel

TRAINED, CONTEXT = 8192, 10_240


@pytest.fixture(scope="module")
def tuned(real: RealModel, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tune_real(real, tmp_path_factory.mktemp("tuned"))


def test_held_out_text_decides(tuned: Tuned) -> None:
    rows = {row.name: row for row in tuned.rows}
    assert rows["base"].total.value > 0.5 + rows[tuned.best_formula].total.value, "unscaled, it is lost beyond 8,192"
    assert tuned.searched < 0
    total = rows["tuned factors"].total
    assert total.difference is not None
    assert total.error is not None
    assert tuned.better == (total.difference < 0 and decided(total.difference, total.error))
    assert tuned.recipe == rows["tuned factors" if tuned.better else tuned.best_formula].recipe
    assert (tuned.trained, tuned.context) == (TRAINED, CONTEXT)
