"""What the search has kept is read again, and every parser is searched for a short time."""

import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from ropeconv.errors import BadSource

from ...support.extent import ALL, DAY, tally
from . import guided
from .guided import Search, changed, corpus, place_of, problem_of, search, traced
from .parsers import PARSERS, Parser

SECONDS = 120.0 if ALL else 6.0
"""Processor time of the search of one parser, two minutes for all of them."""
HERE = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            bool(parser.needs) and find_spec(parser.needs or "x") is None,
            reason=f"{parser.needs} is not installed; pip install 'ropeconv[graphs]'",
        ),
    )
    for name, parser in PARSERS.items()
]


@pytest.mark.parametrize("name", HERE)
def test_kept_inputs_are_read_or_refused_in_a_sentence(name: str) -> None:
    kept = corpus(name)
    assert any(file.startswith("seed") for file in kept)
    parser = PARSERS[name]
    with place_of(parser) as folder:
        problems = {
            file: problem
            for file, content in kept.items()
            if (problem := problem_of(parser, folder, content))
        }
    assert problems == {}


@pytest.mark.parametrize("name", HERE)
def test_the_search_finds_no_input_that_ends_otherwise(name: str) -> None:
    found = search(name, SECONDS, DAY)
    tally("fuzz", name, found.runs, len(found.findings))
    assert [(finding.problem, finding.content[:2000]) for finding in found.findings] == []


@pytest.mark.parametrize("name", HERE)
def test_a_seed_is_read_without_an_error(name: str) -> None:
    """Past the required keys: what is changed is a file that is right."""
    parser = PARSERS[name]
    with place_of(parser) as folder:
        for file, content in corpus(name).items():
            if file.startswith("seed"):
                parser.write(folder, content)
                parser.read(folder)


# The negative controls


def careless(folder: Path) -> None:
    """Reads two letters behind a word, as nothing should."""
    content = (folder / "x").read_bytes()
    if not content.startswith(b"magic"):
        raise BadSource("x does not begin with magic; download it again")
    if content[5:6] == b"\xff":
        raise IndexError
    if content[5:6] == b"s":
        while True:
            pass


def test_a_parser_that_fails_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "careless").mkdir()
    (tmp_path / "careless" / "seed").write_bytes(b"magic")
    monkeypatch.setattr(guided, "CORPUS", tmp_path)
    monkeypatch.setitem(PARSERS, "careless", Parser("x", careless, ()))
    monkeypatch.setattr(guided, "SECONDS", 0.2)
    found = search("careless", 20.0, 0, most=2500)
    assert any("IndexError" in finding.problem for finding in found.findings)


def test_a_parser_that_does_not_end_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guided, "SECONDS", 0.2)
    begin = time.monotonic()
    assert "TooSlow" in problem_of(Parser("x", careless, ()), tmp_path, b"magics")
    assert time.monotonic() - begin < 30


def test_new_branches_are_noticed() -> None:
    few: set[guided.Arc] = set()
    more: set[guided.Arc] = set()
    parser = PARSERS["recipe"]
    with place_of(parser) as folder:
        with traced(few):
            problem_of(parser, folder, b"[]")
        with traced(more):
            problem_of(parser, folder, next(iter(corpus("recipe").values())))
    assert more - few
    assert search("recipe", 0.0, 0).arcs >= more


def test_a_search_is_the_same_for_a_seed() -> None:
    def kept() -> list[bytes]:
        found: Search = search("recipe", 60.0, 3, most=40)
        return found.kept

    assert kept() == kept()
    assert changed(guided.Random(1), [b"a b"], []) == changed(guided.Random(1), [b"a b"], [])


def test_more_inputs_reach_more_branches() -> None:
    few = guided.coverage_of("recipe", [b"[]"])
    more = guided.coverage_of("recipe", [*corpus("recipe").values()])
    assert 0 < more.done <= more.total == few.total
    assert few.done < more.done
