"""Texts: what measures little is said and ordinary ones are not, and the rows that a dataset of the
Hub gives.
"""

import base64
import random
import sys
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace
from typing import Any

import pytest

from ropeconv.errors import BadSource, UsageError
from ropeconv.features.evaluation import texts
from ropeconv.features.evaluation.texts import read_dataset, remark

PROSE = "\n".join(sorted(topics.values(), key=len)[-6:])
DATA = random.Random(0).randbytes(20_000)
ORDINARY = (
    PROSE,
    Path(base64.__file__).read_text(),
    "长上下文的位置编码。" * 3,
    "one\x0ctwo\t\r\n" * 100,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, "") for text in ORDINARY),
        (
            "The grass is green. The sky is blue. " * 500,
            "x.txt repeats itself (zlib compresses it to 1 %)",
        ),
        (base64.encodebytes(DATA).decode(), "looks encoded"),
    ],
    ids=lambda text: text[:12],
)
def test_a_text_that_measures_little_has_a_remark(text: str, expected: str) -> None:
    sentence = remark("x.txt", text)
    assert expected in sentence if expected else sentence == ""


def test_control_characters_are_no_text() -> None:
    with pytest.raises(BadSource, match="binary"):
        remark("data", "ab\x00\x01" * 100)


class Rows(list[dict[str, Any]]):
    """A dataset as `datasets` streams it."""

    def take(self, count: int) -> list[dict[str, Any]]:
        return self[:count]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a stand-in for `datasets` is asked; it has two rows with a text among five, and trusts
    code unasked.
    """
    calls = list[Any]()

    def load_dataset(*given: Any, **options: Any) -> Rows:
        calls.append((*given, options))
        if given[0] == "no/such":
            raise FileNotFoundError("Dataset 'no/such' does not exist\nsee the Hub")
        return Rows([{"text": "a"}, {"text": " "}, {"text": None}, {"text": "b"}, {"text": "c"}])

    stand_in = SimpleNamespace(
        load_dataset=load_dataset, config=SimpleNamespace(HF_DATASETS_TRUST_REMOTE_CODE=None)
    )
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    monkeypatch.setattr(texts, "require", lambda *given: None)
    monkeypatch.setattr(texts, "MOST_DOCUMENTS", 4)
    calls.append(stand_in.config)
    return calls


@pytest.mark.parametrize(
    ("name", "config", "split"),
    [
        ("me/books", None, "test"),
        ("me/books:train", None, "train"),
        ("me/books:en:train", "en", "train"),
    ],
)
def test_the_first_rows_of_a_dataset_are_streamed(
    requests: list[Any], name: str, config: str | None, split: str
) -> None:
    assert read_dataset(name, "text") == [("me/books 0", "a"), ("me/books 3", "b")]
    settings, call = requests
    assert call == ("me/books", config, {"split": split, "streaming": True})
    assert settings.HF_DATASETS_TRUST_REMOTE_CODE is False, "else datasets 3 asks on stdin"


@pytest.mark.parametrize(
    ("name", "field", "problem", "message"),
    [
        ("a/b:c:d:e", "text", UsageError, "write it like owner/name:CONFIG:SPLIT"),
        (
            "me/books",
            "body",
            BadSource,
            "has no column 'body'; name the one with the text with --field",
        ),
        (
            "no/such",
            "text",
            BadSource,
            r"does not load \(Dataset 'no/such' does not exist\); write it as",
        ),
    ],
)
@pytest.mark.usefixtures("requests")
def test_a_dataset_without_texts_is_refused(
    name: str, field: str, problem: type[Exception], message: str
) -> None:
    with pytest.raises(problem, match=message):
        read_dataset(name, field)
