"""scripts/reproduce: training, what is measured, the rows, and which differences are decided."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("matplotlib")

import ropeconv  # noqa: E402
from scripts.reproduction import __main__ as command  # noqa: E402
from scripts.reproduction import bound, methods, running, temperature, thetas  # noqa: E402
from scripts.reproduction.comparing import Comparison, Estimate, estimate  # noqa: E402
from scripts.reproduction.training import Training, build  # noqa: E402


def test_the_rows_are_the_formulas() -> None:
    how = Training()
    assert (how.base, how.length, how.head_dim) == (1e4, 128, 32)
    model, pair = build(replace(how, layers=1), 300), np.arange(16)
    plain, old = 1e4 ** (-pair / 16), 8e4 ** (-pair / 16)
    mixed = {e: plain / np.exp(math.log(8.0) / 16**e * (pair + 1) ** e) for e in (0.25, 0.5, 0.625, 0.75)}
    kept = np.clip((128 * plain / (2 * math.pi) - 1) / 31, 0, 1)
    first, last = (32 * math.log(128 / (2 * math.pi * beta)) / (2 * math.log(1e4)) for beta in (32, 1))
    first, last = max(0, math.floor(first)), math.ceil(last)
    ramp = np.clip((pair - first) / (last - first), 0, 1)
    expected = {
        "base": plain, "linear": plain / 8, "ntk-old": old, "ntk-fixed": old / 8 ** (1 / 16),
        **{f"mixed {exponent}": numbers for exponent, numbers in mixed.items()},
        "by-parts": plain * (kept + (1 - kept) / 8), "yarn": plain * (1 - ramp) + plain / 8 * ramp,
    }  # fmt: skip
    found, rotary, attention_factors = methods.rows(how), model.model.rotary_emb, {}
    for name, row in found.items():
        undo = ropeconv.patch(model, row)
        assert rotary.inv_freq.double().numpy() == pytest.approx(expected[name.partition(",")[0]], rel=1e-6), name
        attention_factors[name] = rotary.attention_scaling
        undo()
    assert attention_factors.pop("yarn") == pytest.approx(0.1 * math.log(8) + 1)
    assert set(attention_factors.values()) == {1.0}
    assert all(row.log_n == ("clamped" if "log-n" in name else None) for name, row in found.items())
    assert all(row.log_n == "full" for row in methods.rows(replace(how, log_n=True)).values())


def test_errors_are_those_by_hand() -> None:
    numbers = np.array([[0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0]])
    found = estimate(numbers)
    assert found.value == 3.0
    assert found.between_models == pytest.approx(1.0)  # means 2 and 4: sqrt(2) / sqrt(2)
    assert found.between_documents == pytest.approx((2.5 / 5) ** 0.5, rel=0.06)  # variance of 1 2 3 4 5: a bootstrap
    assert found.error == pytest.approx((1 + found.between_documents**2) ** 0.5)
    assert estimate(numbers[:1]).between_models is None
    assert estimate(numbers[:, :1]).between_documents is None


@pytest.mark.parametrize(
    ("value", "models", "agreeing", "claimed", "verdict"),
    [
        (5.0, 4 / 3, 3, 1, "decided, as published"),  # the error is 5 / 3
        (4.99, 4 / 3, 3, 1, "not decided"),
        (5.0, 4 / 3, 2, 1, "not decided"),  # one model has the other sign
        (-5.0, 1.0, 3, 1, "decided, not as published"),
        (5.0, 1.0, 3, 0, "decided, published as about 0"),
        (5.0, 1.0, 3, None, "decided"),
    ],
)
def test_three_errors_decide_and_less_does_not(
    value: float, models: float, agreeing: int, claimed: int | None, verdict: str
) -> None:
    assert Comparison("", Estimate(value, 1.0, models), agreeing, 3, claimed=claimed).verdict == verdict


def test_a_single_model_decides_nothing() -> None:
    assert Comparison("", Estimate(50.0, 1.0, None), 1, 1, claimed=1).verdict == "not decided"


def fabricated(how: Training) -> list[tuple[running.Job, running.Found]]:
    """What every job would find, from random numbers."""

    def numbers(*shape: int) -> Any:
        return np.random.default_rng(0).normal(3.0, 0.1, shape)

    rows = ["loss", "loss beyond", *(f"retrieved {distance}" for distance in bound.DISTANCES)]
    done = []
    for job in running.jobs(how, range(2), command.SUBJECTS):
        found = {
            "methods": {name: numbers(3, 8) for name in methods.rows(job.how)},
            "thetas": {name: numbers(len(thetas.FACTORS), 8) for name in thetas.thetas(job.how)},
            "temperature": {str(s): numbers(len(temperature.SWEPT) + 1, 8) for s in temperature.FACTORS},
            "bound": {name: numbers(8) + job.how.base for name in rows},
        }
        done.append((job, {name: found[name] for name in job.subjects}))
    return done


@pytest.mark.nightly
def test_pages_have_every_row_with_what_was_published(tmp_path: Path) -> None:
    how = Training()
    page = command.written(command.reports(fabricated(how), how, command.SUBJECTS), {"device": "cpu"}, tmp_path)
    assert "| mixed 0.625, log-n trained | " in page
    assert " | 49.40 | 68.91 | 45.41 |" in page
    assert re.search(r"\| by-parts \| ([23]\.\d ± 0\.\d \| ){3}not at hand \|", page)
    assert page.count("not decided") > 40  # all rows are equal
    data = json.loads((tmp_path / "results.json").read_text())
    assert {one["verdict"] for one in data["methods"]["comparisons"]} == {"not decided"}
    # base by base, although the jobs of all seeds come in another order
    bases = data["bound"]["bases"]
    assert bases == [one.base for one in bound.trainings(how)]
    losses = [float(line[3].split()[0]) for line in data["bound"]["tables"][0]["lines"]]
    assert losses == pytest.approx([base + 3 for base in bases], abs=0.2)
    assert all((tmp_path / f"{name}.svg").read_text().startswith("<svg") for name in command.SUBJECTS)
