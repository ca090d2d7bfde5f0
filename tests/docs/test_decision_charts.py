"""The charts of docs/methods.md have the commands and the numbers of the code and the data."""

import importlib.metadata
import re
import xml.etree.ElementTree as ElementTree

import pytest

from ropeconv.rope.methods.method import REGISTRY
from scripts.gather_pages import ROOT
from scripts.pages.decision_charts import CHARTS, OTHERWISE, PICTURES, QUESTIONS, drawn

from ..support.commands import parse_problem
from .test_generated import TESTED, parts

README = (ROOT / "README.md").read_text("utf-8")


def words_of(name: str) -> list[str]:
    """The texts of a chart, as they are in the file."""
    root = ElementTree.fromstring((PICTURES / f"{name}.svg").read_text("utf-8"))
    return [
        "".join(element.itertext()).strip()
        for element in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def test_every_option_of_the_chart_exists() -> None:
    shown = " ".join(words_of("choose-method"))
    flags = re.findall(r"--[a-z-]+", " ".join(question.command for question in QUESTIONS))
    assert len(flags) >= 6
    for flag in flags:
        assert flag in shown
        value = [] if flag in ("--on-top", "--replace") else ["4"]
        assert parse_problem(["apply", "model", flag, *value]) == "", flag
    assert OTHERWISE.command in shown
    assert parse_problem([*OTHERWISE.command.split()[1:], "model"]) == ""
    assert "--hasty" in parse_problem(["apply", "model", "--hasty"])


def test_the_factor_without_training_is_that_of_the_method() -> None:
    untuned = REGISTRY["yarn"].max_untuned_factor
    assert f"At most {untuned:g} times the trained length?" in words_of("choose-method")


def test_the_shares_are_those_of_the_table_of_the_readme() -> None:
    table = README.partition("| runtime | supported |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    expected = [f"{100 * int(count) / int(row[1]):.0f} %" for row in rows for count in row[2:]]
    assert len(expected) == 35
    assert [word for word in words_of("choose-engine") if word.endswith("%")] == expected


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_what_the_code_draws(name: str) -> None:
    if TESTED is None or importlib.metadata.version("matplotlib") != TESTED[1]:
        pytest.skip("another matplotlib than that of scripts/constraints.txt draws other files")
    kept, _ = parts((PICTURES / f"{name}.svg").read_text("utf-8"))
    assert kept == parts(drawn(name))[0], "run python -m scripts.pages decision_charts"
