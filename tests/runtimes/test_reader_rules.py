"""Which statement of a reader of GGUF counts, and what is said of it, on readers that are made for the test."""

from __future__ import annotations

from typing import Any

import pytest

from ropeconv.runtimes.gguf_readers import Feature, Reader, Statement, judge_reader

ALL: tuple[Feature, ...] = ("theta", "linear", "yarn")


def reader(*statements: Statement, version: str = "1.0", through: str = "1.5", **more: Any) -> Reader:
    given = {"name": "made", "title": "Made", "source": "reader", "window": "its window is 4k", **more}
    return Reader(version=version, through=through, statements=statements, **given)


def says(status: Any, *features: Any, archs: tuple[str, ...] = ("llama",), **more: str) -> Statement:
    return Statement(archs, features, status, **more)


def judged(of: Reader, *features: Feature, arch: str = "llama") -> tuple[str, str]:
    found = judge_reader(of, features, arch)
    return found.status, found.reason


@pytest.mark.parametrize(
    ("since", "until", "holds"),
    [
        ("", "", True), ("1.6", "", False), ("1.5.9", "", True), ("2", "", False), ("", "1.5", True),
        ("", "1.4", False), ("", "1", True), ("", "1.5.2", False), ("1.0", "1.4", False),
    ],
)  # fmt: skip
def test_a_statement_holds_for_the_last_version_of_its_row(since: str, until: str, holds: bool) -> None:
    """1.5 stands for the last 1.5.x."""
    of = reader(says("exact", "theta", since=since, until=until))
    assert (of.statement("theta", "llama") is not None) is holds


def test_a_statement_on_the_architecture_goes_before_one_on_all() -> None:
    everywhere, own = says("differs", "*", archs=("*",), reason="all"), says("exact", "linear")
    of = reader(everywhere, own)
    assert [of.statement(feature, "llama") for feature in ("linear", "yarn")] == [own, everywhere]
    assert of.statement("linear", "qwen2") is everywhere
    assert reader(own, says("refused", "linear")).statement("linear", "llama") is own, "the first counts"
    assert reader(own).statement("linear", "qwen2") is None


def test_marks_count_where_they_are_named_alone() -> None:
    every = reader(says("exact", "*"))
    assert every.statement("stock_theta", "llama") is None
    assert judged(every, "theta", "stock_theta") == ("exact", "its window is 4k")
    named = reader(says("exact", "*"), says("differs", "stock_theta", reason="it takes another"))
    assert judged(named, "theta", "stock_theta") == (
        "differs", "rope.freq_base 10000 or 500000 without linear or yarn: it takes another",
    )  # fmt: skip
    assert judged(named, "theta")[0] == "exact"


def test_the_worst_feature_decides() -> None:
    def of(**status: str) -> tuple[str, str]:
        made = reader(*(says(one, feature, reason=f"as {one}") for feature, one in status.items()))
        return judged(made, *ALL)

    assert of(theta="exact", linear="exact", yarn="differs") == ("differs", "rope.scaling.type yarn: as differs")
    assert of(theta="ignored", linear="differs", yarn="exact") == ("ignored", "rope.freq_base: as ignored")
    assert of(theta="ignored", linear="refused", yarn="differs")[0] == "refused"
    unknown = of(theta="refused", linear="unknown", yarn="exact")
    assert unknown == ("unknown", "nobody has looked at rope.scaling.type linear of llama in it")
    assert of(theta="refused", yarn="exact")[0] == "unknown", "nothing is stated on linear"


def test_remarks_and_places() -> None:
    """Remarks on what is exact stand before the window, each once; a place is that of the statement or the reader."""
    same = reader(says("exact", "theta", "linear", reason="with a flag"), says("exact", "yarn", reason="slowly"))
    assert judged(same, *ALL) == ("exact", "with a flag; slowly; its window is 4k")
    assert judged(reader(says("exact", "*"), window=""), "theta") == ("exact", "")
    whole = says("refused", "*", reason="no such model", source="statement")
    found = judge_reader(reader(whole), ("theta",), "llama")
    assert (found.reason, found.source, found.grade, found.through) == ("no such model", "statement", "read", "1.5")
    own = judge_reader(reader(says("differs", "theta", reason="so")), ("theta",), "llama")
    assert (own.source, own.display_name, own.runtime) == ("reader", "Made 1.0-1.5", "made@1.0")
    exact = judge_reader(reader(says("exact", "theta", source="statement")), ("theta",), "llama")
    assert exact.source == "reader"


def test_what_is_said_where_nobody_has_looked() -> None:
    of = reader(says("exact", "theta"), remark="it ships another")
    assert judged(of, *ALL) == (
        "unknown",
        "nobody has looked at rope.scaling.type linear and rope.scaling.type yarn of llama in it; it ships another",
    )
    assert judged(of, *ALL, arch="qwen2")[1] == "nobody has looked at qwen2 in it; it ships another"
    assert judged(of)[1] == "nobody has looked at llama in it; it ships another"
    assert judge_reader(of, ALL, "llama").grade == ""
