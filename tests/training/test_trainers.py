"""The data of trainers: everything said has its place, and every file its template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ropeconv.cli.choices import trainer_names
from ropeconv.runtimes import runtimes
from ropeconv.training import trainers
from ropeconv.training.trainer import Trainer

TEMPLATES = Path(__file__).parents[2] / "templates" / "training"


def test_the_names_are_those_of_the_files() -> None:
    assert trainer_names() == tuple(trainers())


def test_every_template_is_of_one_trainer() -> None:
    assert sorted(path.name for path in TEMPLATES.iterdir()) == sorted(
        f"{one.file}.jinja" for one in trainers().values()
    )


@pytest.mark.parametrize("trainer", trainers().values(), ids=lambda one: one.name)
def test_a_statement_has_a_line_or_was_executed(trainer: Trainer) -> None:
    assert trainer.facts
    for fact in trainer.facts:
        assert fact.run or re.fullmatch(r"\S+\.py(:\d+)?(, \S+\.py:\d+)*", fact.source), fact
    assert any(fact.run for fact in trainer.facts)
    assert all(re.fullmatch(r"\S+\.py:\d+", own.source) for own in trainer.rotary)


@pytest.mark.parametrize("trainer", trainers().values(), ids=lambda one: one.name)
def test_its_transformers_is_one_that_was_looked_at(trainer: Trainer) -> None:
    rows = [row for row in runtimes() if row.name == "transformers"]
    assert not trainer.transformers or any(row.covers(trainer.transformers) for row in rows)


@pytest.mark.parametrize("trainer", trainers().values(), ids=lambda one: one.name)
def test_a_python_file_does_not_hide_the_package_that_it_imports(trainer: Trainer) -> None:
    """`python trl.py` would import itself as trl."""
    text = (TEMPLATES / f"{trainer.file}.jinja").read_text()
    imported = re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE)
    assert trainer.file.removesuffix(".py") not in imported
