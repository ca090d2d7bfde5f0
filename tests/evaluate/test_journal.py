"""The journal of `eval` keeps every finished case; what is the same for all journals is in tests/formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.evaluate.case import EVAL, EvalLine, Observation
from ropeconv.formats.journal import Head, Journal, default_path, encoded

FOUND = [
    Observation("growth", "loss", 64, 0, 3, 0.1 + 0.2),
    Observation("passkey", "accuracy", 64, 1, 0, 1.0, depth=0.5),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "cache" / "journal.jsonl"
    with Journal(found, EVAL, "model a") as journal:
        journal.add(EvalLine("first", 1.5, FOUND))
        journal.add(EvalLine("second", 2.5, FOUND[:1]))
    return found


def test_a_second_run_finds_what_the_first_measured_bit_for_bit(path: Path) -> None:
    with Journal(path, EVAL, "model a") as journal:
        assert list(journal.lines.values()) == [EvalLine("first", 1.5, FOUND), EvalLine("second", 2.5, FOUND[:1])]


def test_every_cut_of_the_file_loses_at_most_the_last_line(path: Path) -> None:
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        with Journal(path, EVAL, "model a") as journal:
            assert len(journal.lines) == max(sum(end <= length for end in ends) - 1, 0)
            journal.add(EvalLine("after", 0.0, []))
        with Journal(path, EVAL, "model a") as journal:
            assert "after" in journal.lines


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello\n", "is not a journal of `ropeconv eval`; give another --journal$"),
        (b'{"ropeconv_eval":2,"source":"model a"}\n[]\n', "is not a journal of `ropeconv eval`; give another"),
        (encoded(Head("ropeconv eval", 1, "model a")), "the journal of another version of ropeconv; give another"),
        (encoded(Head("ropeconv eval", 3, "model b")), "the journal of another model; give another --journal, or"),
    ],
)
def test_another_file_is_refused_and_stays(path: Path, content: bytes, said: str) -> None:
    path.write_bytes(content)
    with pytest.raises(BadSource, match=said):
        Journal(path, EVAL, "model a")
    assert path.read_bytes() == content


def test_the_usual_place_is_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path("0123456789abcdef0123").parent == tmp_path / "ropeconv" / "eval"
    assert default_path("a" * 64) != default_path("b" * 64)
