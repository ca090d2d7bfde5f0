"""The data of trainers: every statement has its place, and every file its template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ropeconv.cli.choices import trainer_names
from ropeconv.runtimes import runtimes
from ropeconv.training import trainers
from ropeconv.training.trainer import Trainer

TEMPLATES = Path(__file__).parents[2] / "templates" / "training"


def test_every_trainer_has_a_name_and_a_template() -> None:
    assert trainer_names() == tuple(trainers())
    files = {f"{one.file}.jinja" for one in trainers().values()}
    assert {path.name for path in TEMPLATES.iterdir()} == files


@pytest.mark.parametrize("trainer", trainers().values(), ids=lambda one: one.name)
def test_a_statement_has_a_line_or_was_executed_with_a_transformers_that_is_known(trainer: Trainer) -> None:
    assert any(fact.run for fact in trainer.facts)
    for fact in trainer.facts:
        assert fact.run or re.fullmatch(r"\S+\.py(:\d+)?(, \S+\.py:\d+)*", fact.source), fact
    assert all(re.fullmatch(r"\S+\.py:\d+", own.source) for own in trainer.rotary)
    rows = [row for row in runtimes() if row.name == "transformers"]
    assert not trainer.transformers or any(row.covers(trainer.transformers) for row in rows)


@pytest.mark.parametrize("trainer", trainers().values(), ids=lambda one: one.name)
def test_a_python_file_does_not_hide_the_package_that_it_imports(trainer: Trainer) -> None:
    """`python trl.py` would import itself as trl."""
    text = (TEMPLATES / f"{trainer.file}.jinja").read_text()
    imported = re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE)
    assert trainer.file.removesuffix(".py") not in imported
