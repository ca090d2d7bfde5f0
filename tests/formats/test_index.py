"""Shard indices that are none."""

from __future__ import annotations

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.index import shards


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": 3}',
        '{"weight_map": {"a": []}}',
        '{"weight_map": {"a": 1, "b": "x.safetensors"}}',
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(BadSource, match="index.json"):
        shards(text)


def test_shards_are_listed_once() -> None:
    assert shards('{"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}') == (
        "1.safetensors",
        "2.safetensors",
    )
