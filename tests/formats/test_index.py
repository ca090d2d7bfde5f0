"""JSON files and shard indices: what is refused before anything is computed with it, and what stays
as it was.
"""

import json

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats import jsontext
from ropeconv.formats.jsontext import numbers
from ropeconv.formats.package_data import as_type
from ropeconv.formats.safetensors import (
    INDEX,
    LONGEST,
    index_text,
    safe_name,
    shards,
    tensors,
    with_shard,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a.json is not valid JSON"),
        ("{", "a.json is not valid JSON"),
        ("1", "a.json is not a JSON object"),
        ("[1]", "is not a JSON object"),
        ('\ufeff{"a": 1}', "is not valid JSON"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "is not valid JSON"),
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", "has more than 64 levels"),
        ('{"a": "\\ud800"}', "has '\\\\ud800', half of a character"),
        ('{"a": {"\\udfff": 1}}', "has '\\\\udfff', half of a character"),
        ('{"a": ' + "1" * 5000 + "}", "is not valid JSON"),
        ('{"a": "' + "x" * jsontext.LONGEST + '"}', "the limit is 8,388,608"),
    ],
)
def test_json_that_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        jsontext.parse(text, "a.json")


@pytest.mark.parametrize(
    "data",
    [
        {"time_step_limit": [0.0, float("inf")]},
        {"model_max_length": 1000000000000000019884624838656},
        {"text": "\U0001f40d é", "pair": "\\"},
        {"deep": json.loads("[" * 63 + "]" * 63)},
    ],
)
def test_what_published_files_hold_stays(data: dict[str, object]) -> None:
    assert jsontext.parse(jsontext.dump(data), "x") == data
    assert (
        jsontext.parse(json.dumps(data), "x") == data
    )  # with escapes, among them whole pairs of surrogates


def test_json_keeps_order_and_indentation_or_has_two_spaces() -> None:
    text = '{\n    "b": 1.0,\n    "a": "\u00e9"\n}\n'
    assert jsontext.dump(jsontext.parse(text, "x", len(text)), like=text) == text
    assert jsontext.dump({"a": {"b": "\u00e9"}}) == '{\n  "a": {\n    "b": "\u00e9"\n  }\n}\n'
    assert jsontext.dump({"a": 1}, like='{\n\t"b": 2}') == '{\n\t"a": 1\n}\n'
    assert jsontext.dump({"a": 1}, like='{\r\n   "b": 2}') == '{\n   "a": 1\n}\n'
    with pytest.raises(BadSource, match="x has 8 characters, .* 7"):
        jsontext.parse('{"a": 1}', "x", 7)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_numbers_are_found_in_pieces_of_a_text_of_any_size(size: int) -> None:
    """Under the keys that are asked for, and not in lists and strings; what is not a number is left
    out.
    """
    data = (
        b'{"a": 1, "b": {"c": -2.5e3, "d": [1, 2], "e": "4:{\\"5", "y": 1-2}, "z": {"c": 9},'
        b' "f\\u006f": {"x": 7}}'
    )
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    spans = [
        (span.path, span.value, data[span.start : span.stop])
        for span in numbers(blocks, "x", {"a", "b", "fo"})
    ]
    assert spans == [
        (("a",), 1.0, b"1"),
        (("b", "c"), -2500.0, b"-2.5e3"),
        (("fo", "x"), 7.0, b"7"),
    ]
    assert [span.path for span in numbers(blocks, "x", {"a"}, first=True)] == [("a",)]


def test_a_text_in_blocks_has_no_string_of_more_than_a_mebibyte() -> None:
    def read(length: int) -> list[jsontext.Number]:
        return list(numbers([b'{"a": "' + b"x" * (length - 1), b'"}'], "x", {"a"}))

    assert read(1 << 20) == []
    with pytest.raises(BadSource, match="x has a string .* 1,048,576 bytes"):
        read((1 << 20) + 1)


def test_types_are_those_that_are_needed() -> None:
    assert as_type({"a": [1, 2]}, dict[str, list[int]], "a.json") == {"a": [1, 2]}
    for wrong in ({"a": ["1"]}, {"a": [True]}, [], {"a": [1.5]}):
        with pytest.raises(BadSource, match=r"a\.json .*\(Expected"):
            as_type(wrong, dict[str, list[int]], "a.json")


# Shard indices


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            (text, f"{INDEX} has no readable weight_map")
            for text in (
                "",
                "[]",
                "{}",
                '{"weight_map": 3}',
                '{"weight_map": []}',
                '{"weight_map": {"a": []}}',
                '{"weight_map": {"a": 1, "b": "x"}}',
                '{"weight_map": {"a": "\\ud800"}}',
                '{"weight_map": {"a": "x"}, "metadata": NaN}',
                '{"weight_map": ' + "[" * 100_000 + "}",
            )
        ),
        ('{"weight_map": {"a": "../a"}}', "not inside the folder"),
        (
            '{"weight_map": {"a": "x"}, "b": "' + "x" * (1 << 20) + '"}',
            "bytes beside them, and at most",
        ),
        (
            '{"weight_map": {' + ",".join(f'"{n}": "x"' for n in range(600_001)) + "}}",
            "names 600,001 tensors",
        ),
        ('{"weight_map": {"a": "' + "x" * LONGEST + '"}}', "the limit is 67,108,864"),
    ],
)
def test_indices_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        shards(text)


def test_what_an_index_names_and_how_it_grows() -> None:
    text = json.dumps(
        {"metadata": {"total_size": 10, "x": 1}, "weight_map": {"b": "2", "a": "1", "c": "2"}},
        indent=4,
    )
    assert (shards(text), tensors(text)) == (("1", "2"), ("b", "a", "c"))
    assert json.loads(with_shard(text, "3", {"d": 5, "e": 7})) == {
        "metadata": {"total_size": 22, "x": 1},
        "weight_map": {"b": "2", "a": "1", "c": "2", "d": "3", "e": "3"},
    }
    for metadata in ({}, {"metadata": {"total_size": "10"}}):
        assert json.loads(with_shard(json.dumps(metadata | {"weight_map": {}}), "3", {"d": 5})) == {
            **metadata,
            "weight_map": {"d": "3"},
        }
    assert json.loads(index_text(7, {"a": "x"})) == {
        "metadata": {"total_size": 7},
        "weight_map": {"a": "x"},
    }


@pytest.mark.parametrize(
    ("inside", "names"),
    [
        (True, ("a", "a/b.safetensors", "a.b", "..a", "a..", ".a")),
        (
            False,
            ("", ".", "..", "/a", "../x", "a/../../x", "a/../b", "C:\\x", "a\\b", "c:a", "a\0b"),
        ),
    ],
)
def test_names_inside_a_folder(inside: bool, names: tuple[str, ...]) -> None:
    assert [safe_name(name) for name in names] == [inside] * len(names)
