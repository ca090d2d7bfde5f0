"""JSON files: what is refused before anything is computed with it, and what stays as it was."""

from __future__ import annotations

import json

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats import jsontext


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not valid JSON"),
        ("[1]", "holds no JSON object"),
        ('{"a": 1', "is not valid JSON"),
        ('\ufeff{"a": 1}', "is not valid JSON"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "is not valid JSON"),
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", "has more than 64 levels"),
        ('{"a": "\\ud800"}', "holds '\\\\ud800', half of a character"),
        ('{"a": {"\\udfff": 1}}', "holds '\\\\udfff', half of a character"),
        ('{"a": ' + "1" * 5000 + "}", "is not valid JSON"),
        ('{"a": "' + "x" * jsontext.LONGEST + '"}', "at most 8,388,608 are read"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        jsontext.parse(text, "config.json")


@pytest.mark.parametrize(
    "data",
    [
        {"time_step_limit": [0.0, float("inf")]},
        {"model_max_length": 1000000000000000019884624838656},
        {"text": "\U0001f40d é", "pair": "\\"},
        {"deep": json.loads("[" * 62 + "]" * 62)},
    ],
)
def test_what_published_files_hold_stays(data: dict[str, object]) -> None:
    assert jsontext.parse(jsontext.dump(data), "x") == data
    assert jsontext.parse(json.dumps(data), "x") == data  # with escapes, among them whole pairs of surrogates
