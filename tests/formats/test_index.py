"""Shard indices that are none."""

from __future__ import annotations

import json
from itertools import product

import pytest

from ropeconv.errors import BadSource
from ropeconv.formats import jsontext
from ropeconv.formats.index import LONGEST, shards, with_size


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"weight_map": {"a": "\\ud800"}}', "no readable weight_map"),
        ('{"weight_map": {"a": "x"}, "metadata": NaN}', "no readable weight_map"),
        ('{"weight_map": ' + "[" * 100_000 + "}", "no readable weight_map"),
        ('{"weight_map": {"a": "x"}, "b": "' + "x" * (1 << 20) + '"}', "bytes beside them, and at most"),
        ('{"weight_map": {' + ",".join(f'"{n}": "x"' for n in range(600_001)) + "}}", "names 600,001 tensors"),
        ('{"weight_map": {"a": "' + "x" * LONGEST + '"}}', "at most 67,108,864 are read"),
    ],
)
def test_refuses_what_is_too_large_or_no_text(text: str, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        shards(text)


def test_a_kimi_k2_in_gptq_fits() -> None:
    name = "language_model.model.layers.{}.mlp.experts.{}.{}_proj.{}"
    stored = ("qweight", "qzeros", "scales", "g_idx")
    parts = [name.format(*p) for p in product(range(1, 61), range(384), ("up", "gate", "down"), stored)]
    index = {"metadata": {"total_size": 10**12}, "weight_map": dict.fromkeys(parts, "model-00061-of-00061.safetensors")}
    text = jsontext.dump(index)
    assert len(parts) == 276_480
    assert shards(text) == ("model-00061-of-00061.safetensors",)
    assert json.loads(with_size(text, 5)) == index | {"metadata": {"total_size": 10**12 + 5}}


def test_shards_are_listed_once() -> None:
    assert shards('{"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}') == (
        "1.safetensors",
        "2.safetensors",
    )
