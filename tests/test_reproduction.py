"""scripts/research/reproduction: training, what is measured, the rows, and which differences are decided."""

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
from scripts.research.reproduction import __main__ as command  # noqa: E402
from scripts.research.reproduction import (  # noqa: E402
    bound,
    factors,
    finetuning,
    methods,
    running,
    temperature,
    thetas,
)
from scripts.research.reproduction.comparing import Comparison, Estimate, estimate  # noqa: E402
from scripts.research.reproduction.training import Training, build, frequencies, trained_with  # noqa: E402


def test_the_rows_are_the_formulas() -> None:
    training = Training()
    assert (training.base, training.length, training.head_dim) == (1e4, 128, 32)
    model = build(replace(training, layers=1), 300)
    pair = np.arange(16)
    plain = 1e4 ** (-pair / 16)
    old = 8e4 ** (-pair / 16)
    mixed = {
        e: plain / np.exp(math.log(8.0) / 16**e * (pair + 1) ** e) for e in (0.25, 0.5, 0.625, 0.75)
    }
    kept = np.clip((128 * plain / (2 * math.pi) - 1) / 31, 0, 1)
    first, last = (
        32 * math.log(128 / (2 * math.pi * beta)) / (2 * math.log(1e4)) for beta in (32, 1)
    )
    first = max(0, math.floor(first))
    last = math.ceil(last)
    ramp = np.clip((pair - first) / (last - first), 0, 1)
    expected = {
        "base": plain,
        "linear": plain / 8,
        "ntk-old": old,
        "ntk-fixed": old / 8 ** (1 / 16),
        **{f"mixed {exponent}": numbers for exponent, numbers in mixed.items()},
        "by-parts": plain * (kept + (1 - kept) / 8),
        "yarn": plain * (1 - ramp) + plain / 8 * ramp,
    }
    rows = methods.rows(training)
    rotary = model.model.rotary_emb
    attention_factors = {}
    for name, row in rows.items():
        undo = ropeconv.patch(model, row)
        assert rotary.inv_freq.double().numpy() == pytest.approx(
            expected[name.partition(",")[0]], rel=1e-6
        ), name
        attention_factors[name] = rotary.attention_scaling
        undo()
    assert attention_factors.pop("yarn") == pytest.approx(0.1 * math.log(8) + 1)
    assert set(attention_factors.values()) == {1.0}
    assert all(row.log_n == ("clamped" if "log-n" in name else None) for name, row in rows.items())
    assert all(row.log_n == "full" for row in methods.rows(replace(training, log_n=True)).values())


def test_errors_are_those_by_hand() -> None:
    numbers = np.array([[0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0]])
    result = estimate(numbers)
    assert result.value == 3.0
    assert result.between_models == pytest.approx(1.0)  # means 2 and 4: sqrt(2) / sqrt(2)
    assert result.between_documents == pytest.approx(
        (2.5 / 5) ** 0.5, rel=0.06
    )  # variance of 1 2 3 4 5: a bootstrap
    assert result.error == pytest.approx((1 + result.between_documents**2) ** 0.5)
    assert estimate(numbers[:1]).between_models is None
    assert estimate(numbers[:, :1]).between_documents is None


def difference(
    value: float, documents: float = 1.0, models: float | None = 1.0, count: int = 4
) -> Estimate:
    return Estimate(value, documents, models, 24, count)


def test_degrees_of_freedom_are_those_of_welch() -> None:
    # (1 + 1)^2 / (1 / 23 + 1 / 3) = 10.6; an error of the models alone has those of 4 models, of
    # documents of 24
    assert difference(0.0).freedom == 10
    assert (difference(0.0, documents=0.0).freedom, difference(0.0, models=0.0).freedom) == (3, 23)


@pytest.mark.parametrize(
    ("estimate", "agreeing", "claimed", "verdict"),
    [
        # the error is 5 / 3, with 7 degrees of freedom: 4.53 errors, scipy.stats.t.isf(0.00135, 7)
        (difference(7.6, models=4 / 3), 4, 1, "decided, as published"),
        (difference(7.5, models=4 / 3), 4, 1, "not decided"),
        (difference(8.2, models=4 / 3), 3, 1, "not decided"),  # one model has the other sign
        (difference(-8.2), 4, 1, "decided, not as published"),
        (difference(8.2), 4, 0, "decided, published as about 0"),
        (difference(8.2), 4, None, "decided"),
        (
            difference(9.1, documents=0.0),
            4,
            1,
            "not decided",
        ),  # 9.22 errors are needed between 4 models
        (difference(9.3, documents=0.0), 4, 1, "decided, as published"),
        (
            difference(50.0, models=None, count=1),
            1,
            1,
            "not decided",
        ),  # a single model decides nothing
    ],
)
def test_students_t_decides(
    estimate: Estimate, agreeing: int, claimed: int | None, verdict: str
) -> None:
    assert Comparison("", estimate, agreeing, claimed=claimed).verdict == verdict


def fabricated(training: Training) -> list[tuple[running.Job, running.Found]]:
    """What every job would find, from random numbers."""

    def numbers(*shape: int) -> Any:
        return np.random.default_rng(0).normal(3.0, 0.1, shape)

    done = []
    for job in running.jobs(training, range(4), list(running.SUBJECTS)):
        of_bound = [
            "loss",
            "loss beyond",
            *(f"retrieved {distance}" for distance in bound.DISTANCES),
        ]
        of_tuned = ["loss", "loss of the last quarter", "loss beyond"]
        of_tuned += [f"found at {distance}" for distance in finetuning.DISTANCES]
        by_base = {
            f"{bound.name_of(job.training)}, {name}": numbers(8) + job.training.base
            for name in of_bound
        }
        results = {
            "methods": {name: numbers(3, 8) for name in methods.rows(job.training)},
            "thetas": {
                name: numbers(len(thetas.FACTORS), 8) for name in thetas.thetas(job.training)
            },
            "temperature": {
                str(s): numbers(len(temperature.SWEPT) + 1, 8) for s in temperature.FACTORS
            },
            "bound": by_base,
            "rotation": by_base,
            "finetuning": {
                f"{row}, {name}": numbers(8)
                for row in finetuning.rows(job.training)
                for name in of_tuned
            },
            "factors": (
                {"base": numbers(5, 8)}
                | {
                    f"{name}, {factor}": numbers(2 + index, 8)
                    for index, factor in enumerate(factors.FACTORS)
                    for name in factors.rows(job.training, factor)
                }
            ),
        }
        done.append((job, {name: results[name] for name in job.subjects}))
    return done


def test_subjects_share_models_and_a_key_belongs_to_a_training() -> None:
    jobs = running.jobs(Training(), range(4), list(running.SUBJECTS))
    assert [job.subjects for job in jobs if len(job.subjects) > 1][::4] == [
        ("methods", "thetas", "temperature"),
        ("factors", "finetuning"),
    ]
    # for each seed plain, with log-n, four bases, one to fine-tune, three for the rotation
    assert len(jobs) == len({job.training for job in jobs}) == 4 * 10


def test_half_of_a_head_is_rotated_in_training() -> None:
    training = Training(base=100.0, rotated=0.5)
    assert frequencies(training) == pytest.approx([*(100.0 ** (-np.arange(8) / 8)), *[0.0] * 8])
    recipe = trained_with(training)
    model = build(replace(training, layers=1), 300)
    assert recipe is not None
    ropeconv.patch(model, recipe)
    assert model.model.rotary_emb.inv_freq.double().numpy() == pytest.approx(
        frequencies(training), rel=1e-6
    )
    assert trained_with(Training()) is None


def test_the_methods_of_men_meet_at_the_critical_pair_and_violate_the_bound_as_counted_by_hand() -> (
    None
):
    training = finetuning.trainings(Training())[0]
    pair = np.arange(16)
    cut = finetuning.split(training)
    assert cut == 7  # 16 ln(128 / 2 pi) / ln 1000 = 6.98
    first = (1000 * 4 ** (16 / 7)) ** (-pair / 16)
    second = np.where(pair < cut, first, 1000.0 ** (-pair / 16) / 4)
    for name, inv_freq in (("Method 1", first), ("Method 2", second)):
        below = int((np.cos(np.outer(np.arange(1, 512), inv_freq)).sum(1) < 0).sum())
        assert finetuning.violations(training, finetuning.rows(training)[name]) == below
        assert below == {"Method 1": 0, "Method 2": 9}[name]


def test_a_page_keeps_the_sections_of_other_subjects() -> None:
    page = "### A\n\nold\n\n### B\n\nkept\n"
    assert (
        command.replaced(page, "### A\n\nnew\n\n### C\n\nmore\n")
        == "### A\n\nnew\n\n### B\n\nkept\n\n### C\n\nmore\n"
    )
    assert command.replaced("", "### A\n\nnew\n") == "### A\n\nnew\n"


@pytest.mark.nightly
def test_pages_have_every_row_with_what_was_published(tmp_path: Path) -> None:
    training = Training()
    subjects = list(running.SUBJECTS)
    page = command.written(
        command.reports(fabricated(training), training, subjects), {"device": "cpu"}, tmp_path
    )
    assert "| mixed 0.625, log-n trained | " in page
    assert " | 49.40 | 68.91 | 45.41 |" in page
    assert re.search(r"\| by-parts \| ([23]\.\d ± 0\.\d \| ){3}- \|", page)
    assert page.count("not decided") > 80  # all rows are equal
    data = json.loads((tmp_path / "results.json").read_text())
    for name in ("methods", "finetuning", "factors"):
        assert {comparison["verdict"] for comparison in data[name]["comparisons"]} == {
            "not decided"
        }
    # base by base, although the jobs of all seeds come in another order
    bases = data["bound"]["bases"]
    assert bases == [variant.base for variant in bound.trainings(training)]
    losses = [float(line[3].split()[0]) for line in data["bound"]["tables"][0]["lines"]]
    assert losses == pytest.approx([base + 3 for base in bases], abs=0.2)
    assert all((tmp_path / f"{name}.svg").read_text().startswith("<svg") for name in subjects)
