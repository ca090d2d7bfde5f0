"""Advice sorted by a measurement."""

import json
from pathlib import Path

import msgspec
import pytest

from ropeconv import UsageError, inspect_source, open_source
from ropeconv.bake.advice import Advice, advise
from ropeconv.evaluate.ranking import Ranking, ranked
from ropeconv.evaluate.result import Result, write_result

from ..conftest import CONFIGS
from ..support.in_process import command
from .results import made

LLAMA_3 = str(CONFIGS / "meta-llama--Meta-Llama-3-8B.json")
"""Trained for 8,192 tokens, as the made-up results are."""
ROWS = {"linear": "linear:4", "yarn": "yarn:32k", "ntk": "ntk:4", "mixed": "mixed:4"}


@pytest.fixture(scope="module")
def advice() -> list[Advice]:
    return advise(open_source(LLAMA_3), 32768)[0]


@pytest.fixture(scope="module")
def result() -> Result:
    """yarn is measured under the length that it reaches, which is the same method."""
    text = msgspec.json.encode(made("base,linear:4,yarn:4,ntk:4,mixed:4", ["growth"]))
    data = msgspec.json.decode(text.replace(b'"yarn:4"', b'"yarn:32k"'))
    data["rows"][2]["recipe"]["parameters"]["factor"] = "32k"
    return msgspec.convert(data, Result)


def ranking(advice: list[Advice], result: Result) -> Ranking:
    return ranked(advice, result, inspect_source(open_source(LLAMA_3)), 32768)


def test_measured_methods_come_first_by_their_loss(advice: list[Advice], result: Result) -> None:
    names, defaults = ([entry.method.name for entry in rows] for rows in (ranking(advice, result).methods, advice))
    losses = {name: result.cell(row, "growth", "loss", 32768).value for name, row in ROWS.items()}
    assert names[:4] == sorted(losses, key=lambda name: losses[name]) != defaults[:4]
    assert names[3] == "ntk", "it breaks before 32k tokens"
    assert names[4:] == [name for name in defaults if name not in losses]


def test_results_that_say_nothing_about_this_model_are_refused(advice: list[Advice], result: Result) -> None:
    for change, message in (({"trained": 4096}, "trained for 4,096 tokens"), ({"cells": []}, "no growth")):
        with pytest.raises(UsageError, match=message):
            ranking(advice, msgspec.structs.replace(result, **change))


def test_advise_sorts_by_a_file(tmp_path: Path, result: Result) -> None:
    write_result(result, tmp_path / "result.json")

    def printed(*words: str) -> str:
        return command(tmp_path, "advise", LLAMA_3, "--context", "32k", *words, code=0).stdout

    measured = ("--measured", "result.json")
    text = printed(*measured)
    assert "Sorted by: the loss at 32,768 tokens in " in printed(*measured, "--explain")
    assert "None of these numbers is a measurement" not in text
    assert text.splitlines()[1].split()[:5] == ["method", "loss", "price", "holds", "to"]
    rows = [item["measured"] and item["measured"]["row"] for item in json.loads(printed(*measured, "--json"))["advice"]]
    assert None not in rows[:4]
    assert set(rows[4:]) == {None}
    assert "measured" not in json.loads(printed("--json"))["advice"][0]
    assert "Measure: ropeconv eval" in printed()
