"""How tensors are spread over files, and limits of formats that are reached exactly."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats import index, jsontext
from ropeconv.formats.index import shards
from ropeconv.formats.safetensors import MAX_SIDES, read_header
from ropeconv.formats.shards import SHARD_BYTES, grouped, index_text, shard_names
from ropeconv.formats.vectors import read_lists


@pytest.mark.parametrize(
    ("sizes", "limit", "groups"),
    [
        ([3, 3, 3], 6, [(3, 3), (3,)]),
        ([3, 3, 3], 5, [(3,), (3,), (3,)]),
        ([9, 1, 1], 4, [(9,), (1, 1)]),
        ([1, 9, 1], 4, [(1,), (9,), (1,)]),
        ([2, 2, 2, 2, 2], 4, [(2, 2), (2, 2), (2,)]),
        ([5], 4, [(5,)]),
        ([], 4, [()]),
    ],
)
def test_items_stay_in_order_and_groups_within_their_limit(
    sizes: list[int], limit: int, groups: list[tuple[int, ...]]
) -> None:
    assert grouped(sizes, lambda size: size, limit) == groups


def test_files_of_the_hub_hold_five_billion_bytes() -> None:
    half = SHARD_BYTES // 2
    assert SHARD_BYTES == 5 * 10**9
    assert len(grouped([half, half], int)) == 1
    assert len(grouped([half, half + 1], int)) == 2


def test_names_and_the_index_of_shards() -> None:
    assert shard_names(1) == ["model.safetensors"]
    assert shard_names(2) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert shard_names(12)[11] == "model-00012-of-00012.safetensors"
    assert json.loads(index_text(7, {"a": "x"})) == {"metadata": {"total_size": 7}, "weight_map": {"a": "x"}}


def test_an_index_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"weight_map": {"a": "x", "b": "x"}, "more": "1234"}'
    for name, most in (("LONGEST", len(text)), ("MOST_TENSORS", 2), ("LONGEST_REST", len('"1234"'))):
        monkeypatch.setattr(index, name, most)
        assert shards(text) == ("x",)
        monkeypatch.setattr(index, name, most - 1)
        with pytest.raises(BadSource, match="at most"):
            shards(text)
        monkeypatch.undo()


def test_json_at_its_limits() -> None:
    text = '{"a": 1}'
    assert jsontext.parse(text, "x", len(text)) == {"a": 1}
    with pytest.raises(BadSource, match="x has 8 characters, and at most 7 are read"):
        jsontext.parse(text, "x", len(text) - 1)
    levels = "[" * jsontext.DEEPEST + "]" * jsontext.DEEPEST
    assert jsontext.loads(levels, "x")
    with pytest.raises(BadSource, match="more than 64 levels"):
        jsontext.loads(f"[{levels}]", "x")


def test_tensors_of_many_dimensions(tmp_path: Path) -> None:
    for sides in (MAX_SIDES, MAX_SIDES + 1):
        header = json.dumps({"a": {"dtype": "U8", "shape": [1] * sides, "data_offsets": [0, 1]}}).encode()
        (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + b"\1")
        if sides == MAX_SIDES == 64:
            assert len(read_header(tmp_path / "x").tensors["a"].shape) == 64
            continue
        with pytest.raises(BadSource, match="'a' is U8"):
            read_header(tmp_path / "x")


@pytest.mark.parametrize(("number", "good"), [("1e38", True), ("-1e38", True), ("1.01e38", False), ("-1.01e38", False)])
def test_numbers_of_lists_fit_into_float32(tmp_path: Path, number: str, good: bool) -> None:
    (tmp_path / "a.json").write_text(f"[{number}]")
    if good:
        assert read_lists(tmp_path / "a.json")["inv_freq"] == [float(number)]
        return
    with pytest.raises(Exception, match="cannot be read as a list of numbers"):
        read_lists(tmp_path / "a.json")
