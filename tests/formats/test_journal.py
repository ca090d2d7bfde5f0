"""A journal: what a run wrote is there for the next one, damage costs one line, and other files
stay as they are.
"""

import re
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.journal import Head, Journal, JournalKind, Line, default_path, encode_line


class Number(Line, frozen=True):
    value: int


KIND = JournalKind("count", 1, Number)


def opened(path: Path, of: str = "a", fresh: bool = False) -> Journal[Number]:
    return Journal(path, KIND, of, fresh)


def kept(path: Path, count: int = 3) -> Path:
    with opened(path) as journal:
        for number in range(count):
            journal.add(Number(str(number), number))
    return path


def values(path: Path) -> dict[str, int]:
    with Journal(path, KIND, "a") as journal:
        return {key: line.value for key, line in journal.lines.items()}


def test_lines_are_there_again_and_the_last_of_a_key_holds(tmp_path: Path) -> None:
    path = kept(tmp_path / "new" / "x.jsonl", 2)
    with opened(path) as journal:
        assert (list(journal.lines.values()), journal.notes) == (
            [Number("0", 0), Number("1", 1)],
            [],
        )
        journal.add(Number("0", 5))
    assert values(path) == {"0": 5, "1": 1}
    assert path.read_text().count("\n") == 4


def test_a_changed_byte_anywhere_costs_one_line_and_is_told(tmp_path: Path) -> None:
    path = kept(tmp_path / "x.jsonl")
    whole = path.read_bytes()
    for place in (*range(0, len(whole), 3), len(whole) - 1):
        for byte in (whole[place] ^ 1, 0, ord("\n")):
            data = whole[:place] + bytes([byte]) + whole[place + 1 :]
            if data == whole:
                continue
            path.write_bytes(data)
            with opened(path) as journal:
                numbers = {key: line.value for key, line in journal.lines.items()}
                assert numbers.items() <= {"0": 0, "1": 1, "2": 2}.items()
                lost = 3 - len(numbers)
                assert lost <= (2 if whole[place] == ord("\n") else 1), place
                assert len(journal.notes) == 1, place
                assert re.search(
                    r"(^1 line of .* is|^\d lines of .* are) damaged and skipped\.$",
                    journal.notes[0],
                )
                journal.add(Number("after", 9))
            assert values(path).items() >= numbers.items() | {"after": 9}.items()


def test_a_first_line_that_lost_power_has_cut_or_zeroed_is_written_again(tmp_path: Path) -> None:
    path = kept(tmp_path / "x.jsonl", 0)
    first = path.read_bytes()
    for length in range(len(first) + 1):
        for data in (first[:length], bytes(length)):
            path.write_bytes(data)
            assert values(path) == {}
            assert path.read_bytes() == first
    path.write_bytes(bytes(len(first) + 1))
    with pytest.raises(BadSource):
        opened(path)


def test_fresh_gives_the_old_journal_another_name(tmp_path: Path) -> None:
    """Also one of another model, of another version, and a damaged one."""
    path = tmp_path / "x.jsonl"
    other = tmp_path / "other"
    with opened(other, "b") as journal:
        journal.add(Number("9", 9))
    contents = (
        kept(tmp_path / "own").read_bytes(),
        other.read_bytes(),
        kept(tmp_path / "damaged").read_bytes()[5:],
        encode_line(Head("ropeconv count", 7, "a")) + b"[]\n",
    )
    for content, end in zip(contents, ("", "2", "3", "4"), strict=True):
        path.write_bytes(content)
        with opened(path, fresh=True) as journal:
            assert journal.lines == {}
            assert [f"{path}.old{end}." in note for note in journal.notes] == [True]
            journal.add(Number("new", 1))
        assert (tmp_path / f"x.jsonl.old{end}").read_bytes() == content
        assert values(path) == {"new": 1}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        b"text",
        b"my thesis\n",
        b'{"value":1}\n',
        b'{"format":1,"of":"a"}\n{"value":"b"}\n',
        b"\0" * 100,
        b"\n",
        b'{"journal":"of a traveller"}\n',
        b'{"ropeconv_eval":2,"source":"a"}\n',
        b"x" * (1 << 21),
        encode_line(Head("ropeconv weigh", 1, "a")) + encode_line(Number("0", 0)),
        encode_line(Head("ropeconv weigh", 1, "a"))[5:] + encode_line(Number("0", 0)),
    ],
)
def test_a_file_of_the_user_stays_and_no_advice_destroys_it(
    tmp_path: Path, content: bytes, fresh: bool
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadSource) as caught:
        opened(path, fresh=fresh)
    assert (
        str(caught.value) == f"{path} is not a journal of `ropeconv count`; give another --journal"
    )
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x.jsonl", content)]


def test_a_journal_of_another_model_another_version_and_another_writer_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl"
    with (
        opened(path),
        pytest.raises(BadSource, match="^another run"),
    ):
        opened(path, fresh=True)
    with pytest.raises(BadSource, match=r"another model; .*--journal"):
        opened(path, of="b")
    path.write_bytes(encode_line(Head("ropeconv count", 2, "a")))
    with pytest.raises(BadSource, match=r"another version"):
        opened(path)
    assert [file.name for file in tmp_path.iterdir()] == ["x.jsonl"]


def test_the_default_journal_is_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_path("0123456789abcdef" * 4) == Path(
        "/cache/ropeconv/eval/0123456789abcdef.jsonl"
    )
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_path("a", "run") == Path.home() / ".cache" / "ropeconv" / "run" / "a.jsonl"
