"""Advice sorted by a measurement."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ropeconv.bake.advice import Advice, advise
from ropeconv.errors import UsageError
from ropeconv.evaluate.ranking import Ranking, ranked
from ropeconv.evaluate.result import Result, write_result
from ropeconv.inspection import inspect_source
from ropeconv.sources import open_source

from ..conftest import CONFIGS, Run
from .results import made

LLAMA_3 = CONFIGS / "meta-llama--Meta-Llama-3-8B.json"
"""Trained for 8,192 tokens, as the made-up results are."""


@pytest.fixture(scope="module")
def found() -> list[Advice]:
    return advise(open_source(str(LLAMA_3)), 32768)[0]


@pytest.fixture(scope="module")
def result() -> Result:
    """yarn is measured under the length that it reaches, which is the same method."""
    text = msgspec.json.encode(made("base,linear:4,yarn:4,ntk:4,mixed:4", ["growth"]))
    data = msgspec.json.decode(text.replace(b'"yarn:4"', b'"yarn:32k"'))
    for row in data["rows"]:
        if row["name"] == "yarn:32k":
            row["recipe"]["parameters"]["factor"] = "32k"
    return msgspec.convert(data, Result)


def ranking(found: list[Advice], result: Result, context: int = 32768) -> Ranking:
    return ranked(found, result, inspect_source(open_source(str(LLAMA_3))), context)


def test_measured_methods_come_first_by_their_loss(found: list[Advice], result: Result) -> None:
    got = ranking(found, result)
    names = [one.method.name for one in got.found]
    losses = {
        name: result.cell(row, "growth", "loss", 32768).value  # type: ignore[union-attr]
        for name, row in (("linear", "linear:4"), ("yarn", "yarn:32k"), ("ntk", "ntk:4"), ("mixed", "mixed:4"))
    }
    assert names[:4] == sorted(losses, key=lambda name: losses[name])
    assert names[3] == "ntk", "it breaks before 32k tokens"
    own = [one.method.name for one in found]
    assert names[4:] == [name for name in own if name not in losses]
    assert own[:4] != names[:4]


def test_the_longest_length_within_the_context_counts(found: list[Advice], result: Result) -> None:
    assert ranking(found, result, 40_000).column == 32768
    assert ranking(found, result, 20_000).column == 16384
    assert ranking(found, result, 1000).column == 2048


def test_the_same_name_with_another_factor_is_another_method(result: Result) -> None:
    at_8 = advise(open_source(str(LLAMA_3)), 65536)[0]
    assert ranking(at_8, result, 65536).rows == {}
    assert [one.method.name for one in ranking(at_8, result, 65536).found] == [one.method.name for one in at_8]


def test_cells_are_those_of_the_evaluation(found: list[Advice], result: Result) -> None:
    got = ranking(found, result)
    by_name = {one.method.name: one for one in found}
    cell, row = result.cell("yarn:32k", "growth", "loss", 32768), result.rows[2]
    assert cell is not None
    assert got.cells(by_name["yarn"]) == (f"{cell.value:.3f}", f"{row.price:+.3f}", "4T")
    assert got.cells(by_name["llama3"]) == ("-", "-", "-")
    assert got.to_dict(by_name["llama3"]) is None
    assert got.to_dict(by_name["yarn"]) == {
        "row": "yarn:32k", "length": 32768, "loss": cell.value, "error": cell.error, "difference": cell.difference,
        "difference_error": cell.difference_error, "price": row.price, "price_error": row.price_error,
        "holds_to": 32768,
    }  # fmt: skip


def test_results_that_say_nothing_about_this_model_are_refused(found: list[Advice], result: Result) -> None:
    with pytest.raises(UsageError, match="trained for 4,096 tokens, and this one was for 8,192"):
        ranking(found, msgspec.structs.replace(result, trained=4096))
    with pytest.raises(UsageError, match="no growth"):
        ranking(found, msgspec.structs.replace(result, cells=[]))


def test_advise_sorts_by_a_file(run: Run, tmp_path: Path, result: Result) -> None:
    write_result(result, tmp_path / "result.json")
    given = ("advise", LLAMA_3, "--context", "32k", "--measured", "result.json")
    text = run(*given).stdout
    assert "Sorted by: the loss at 32,768 tokens in result.json" in text
    assert "None of these numbers is a measurement" not in text
    assert text.splitlines()[1].split()[:5] == ["method", "loss", "price", "holds", "to"]
    data = json.loads(run(*given, "--json").stdout)
    measured = [one["measured"] and one["measured"]["row"] for one in data["advice"]]
    assert None not in measured[:4]
    assert set(measured[4:]) == {None}
    plain = json.loads(run(*given[:4], "--json").stdout)
    assert "measured" not in plain["advice"][0]
    assert "`ropeconv eval` makes one" in run(*given[:4]).stdout
