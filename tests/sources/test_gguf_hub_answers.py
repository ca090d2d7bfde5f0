"""Answers on GGUF files that no Hub should give: each ends in a sentence, and nothing is kept or written."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path

import huggingface_hub
import pytest

from ropeconv.errors import BadSource
from ropeconv.rope.methods.parts import YarnMethod
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import hub_shard, open_source

from ..support.baking import apply, make_plan
from .gguf_hub import LARGE, NAME, Change, Hostile, fetched, large

YARN = Recipe(YarnMethod(4.0))
RANGES = {
    "no range": None,
    "text as a range": "bytes all of it",
    "another part": "bytes 1-262144/6000000",
    "no size": "bytes 0-262143/*",
    "a negative size": "bytes 0-262143/-1",
    "a size smaller than the part": "bytes 0-262143/7",
    "an impossible size": f"bytes 0-262143/{1 << 59}",
    "a size with too many digits": "bytes 0-262143/" + "9" * 5000,
}


def described(text: str | None) -> Change:
    return lambda status, content, headers: (206, content, {"Content-Range": text} if text else {})


ANSWERS: dict[str, Change] = {
    "the whole file": lambda status, content, headers: (200, bytes(LARGE), {}),
    "a part that says it is all": lambda status, content, headers: (200, content, headers),
    "a short body": lambda status, content, headers: (206, content[:-1], headers),
    "a long body": lambda status, content, headers: (206, content * 2, headers),
    "nothing": lambda status, content, headers: (206, b"", headers),
    **{name: described(text) for name, text in RANGES.items()},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_not_what_was_asked_for(big_hub: Hostile, tmp_path: Path, name: str) -> None:
    big_hub.change = ANSWERS[name]
    tracemalloc.start()
    with pytest.raises(BadSource, match=f"answer about {NAME} (is not the part of the file|is longer than 262,144)"):
        _ = open_source(NAME).file
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
    assert fetched(tmp_path) == []
    big_hub.change = None
    assert open_source(NAME).file.name == "big.gguf"


def test_a_size_that_changes_between_answers(big_hub: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_shard, "FIRST", 1000)
    answers = iter(["bytes 0-999/6000000", "bytes 1000-3999/7000000"])
    big_hub.change = lambda status, content, headers: (status, content, {**headers, "Content-Range": next(answers)})
    with pytest.raises(BadSource, match="is not the part of the file that was asked for"):
        _ = open_source(NAME).file


def test_a_file_that_arrives_otherwise_than_it_was_planned(big_hub: Hostile, tmp_path: Path) -> None:
    plan = make_plan(NAME, YARN, tmp_path / "out.gguf", replace=True)
    large(tmp_path / "repo" / "quants" / "big.gguf", 5_001)
    with pytest.raises(BadSource, match=f"{NAME} arrived with another header than was read before; run again"):
        apply(plan)
    assert not (tmp_path / "out.gguf").exists()


def test_a_branch_that_moves_after_the_plan_is_left_alone(big_hub: Hostile, tmp_path: Path) -> None:
    """The commit of the plan is fetched, and the cache is told nothing about the branch."""
    plan = make_plan(NAME, YARN, tmp_path / "out.gguf", replace=True)
    old = big_hub.commit("me/tiny")
    big_hub.branches.append(old)
    big_hub.commit = lambda repo: "f" * 40  # type: ignore[method-assign]
    apply(plan)
    assert [path.parts[-3] for path in (tmp_path / "home").rglob("big.gguf")] == [old]
    assert not list((tmp_path / "home").rglob("refs/main"))


def test_a_hub_without_commits_is_refused(big_hub: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    known = huggingface_hub.get_hf_file_metadata
    without = lambda url: dataclasses.replace(known(url), commit_hash=None)  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", without)
    with pytest.raises(BadSource, match=f"the Hub tells no commit of {NAME}"):
        open_source(NAME)
