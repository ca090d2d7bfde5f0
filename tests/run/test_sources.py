"""Sources of a plan: paths, patterns, ids; what cannot be had is told without stopping the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.errors import UsageError
from ropeconv.run.jobs import named_sources

from .plans import models


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return models(tmp_path)


def test_patterns_take_models_alone(place: Path) -> None:
    (place / "models" / "notes").mkdir()
    (place / "models" / "x.gguf").write_bytes(b"GGUF")
    found = named_sources(["models/*", "models/a"], place)
    assert [one.name for one in found] == ["a", "b", "c", "x"]
    assert found[0].reference == str(place / "models" / "a")
    before = named_sources([str(place / "models" / "?")], Path("/"))
    assert before == found[:3]
    (place / "models" / "b" / "config.json").write_text("{}")
    after = named_sources(["models/?"], place)
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, False, True], "by their files"


def test_nothing_is_an_error_and_one_of_several_is_a_problem(place: Path) -> None:
    with pytest.raises(UsageError, match="the source 'nothing/\\*' matches no model; correct it"):
        named_sources(["nothing/*"], place)
    good, bad = named_sources(["models/a", "no such thing"], place)
    assert (good.problem, bad.identity) == ("", "")
    assert bad.problem == "no such thing is neither a path nor a Hub id; correct it"
