"""A text or the path of one: which of the two a value is."""

from pathlib import Path

import pytest

from ropeconv.errors import UsageError
from ropeconv.formats.texts import text_or_path

TEXTS = (
    "It was the best of times, it was the worst of times",
    "one line\n",
    "word\n",
    "two\nlines",
    "Dear all,\nsee notes.txt",
    "/one/line that begins like a path\nand another line",
    "How are you? And/or not: that is a question",
    "長い文章" * 100,
    "It was the best of times. " * 10_000,
    "It was the best of times." * 10_000,
    "a\0b c",
)
PATHS = (
    "book.txt",
    "book",
    "essays/*.txt",
    "essays/*",
    "my essays/*.txt",
    "my essays/a long name.txt",
    "./my essays",
    "../my essays",
    "/data/my essays",
    "~/my essays",
    "-",
    "C:\\my essays\\one.txt",
    "/data/" + "deep/" * 60 + "book",
    " book.txt",
)


@pytest.mark.parametrize("value", TEXTS, ids=range(len(TEXTS)))
def test_a_text_is_the_text_itself(value: str) -> None:
    assert text_or_path(value) == value
    assert isinstance(text_or_path(value), str)


@pytest.mark.parametrize("value", PATHS)
def test_what_looks_like_a_path_is_one_whether_it_exists_or_not(value: str) -> None:
    assert text_or_path(value) == Path(value).expanduser()


def test_a_path_object_is_a_path_whatever_its_name() -> None:
    assert text_or_path(Path("a name with words")) == Path("a name with words")


def test_a_file_that_is_there_is_read_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "It was the best of times"
    assert text_or_path(name) == name
    Path(name).write_text("x")
    assert text_or_path(name) == Path(name)


@pytest.mark.parametrize("value", ["", " \n", b"bytes", 3, None, ["a"], b"a.txt"])
def test_other_values_are_a_sentence_with_the_fix(value: object) -> None:
    with pytest.raises(UsageError, match=r"^text="):
        text_or_path(value)


def test_an_unknown_home_is_a_sentence() -> None:
    with pytest.raises(Exception, match="unknown user"):
        text_or_path("~nobody-here/book.txt")
