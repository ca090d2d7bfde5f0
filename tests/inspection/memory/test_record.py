"""The memory that is predicted, beside what ten shapes took in three runtimes.

`docs/evidence/memory.json` is written by `scripts/bench memory`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.convert.to_gguf.hparams import hparams, sizes_of
from ropeconv.inspection.kv_cache import config_cache, gguf_cache
from ropeconv.inspection.memory.fit import MemoryNeed, needed
from ropeconv.inspection.memory.machine import Machine
from ropeconv.inspection.memory.runtime import MEMORY
from ropeconv.inspection.memory.shape import ModelShape, config_shape, gguf_shape
from ropeconv.models.config import detect
from ropeconv.runtimes.llamacpp.archs import find_arch
from ropeconv.runtimes.read_config import read_spec

RECORD = json.loads(
    (Path(__file__).parents[3] / "docs" / "evidence" / "memory.json").read_text("utf-8")
)
ROWS = RECORD["rows"]
CPU = Machine(kind="ram", name="RAM", bytes=16 << 30)
ERROR = 0.05
"""The share of the sum by which a prediction may be off."""


def config_of(shape: str) -> dict[str, Any]:
    """The config.json of a shape, from the record alone."""
    about = RECORD["shapes"][shape]
    config = {**RECORD["common"], **about["config"], "model_type": about["model_type"]}
    config.setdefault("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
    return config | {"dtype": "bfloat16"}


class PlannedHeader:
    """The keys of the GGUF file that a config becomes."""

    def __init__(self, config: dict[str, Any]) -> None:
        family = detect(config)
        spec = read_spec(config, family).unscaled()
        sizes = sizes_of(config, family, spec)
        self.values = hparams(sizes, family, spec, config["vocab_size"])
        assert family.gguf is not None
        self.arch = find_arch(family.gguf.arch)
        self.tokens = ["token"] * config["vocab_size"]

    def get(self, key: str, default: object = None) -> Any:
        """The value of a key."""
        if key == "tokenizer.ggml.tokens":
            return self.tokens
        name = key.removeprefix(f"{self.arch.name}.")
        for known in (key, name):
            if known in self.values:
                return self.values[known].decode()
        return default


def shape_of(row: dict[str, Any]) -> ModelShape:
    """The shape of a row, with the weights that were measured."""
    config = config_of(row["shape"])
    if row["runtime"] == "llama-cpp":
        header = PlannedHeader(config)
        shape = gguf_shape(header, header.arch, gguf_cache(header, header.arch))
    else:
        family = detect(config)
        shape = config_shape(config, family, config_cache(config, family))
    assert shape is not None
    return shape.with_weights(row["measured"]["weights"])


def predict(row: dict[str, Any]) -> MemoryNeed:
    """What the formulas say today."""
    runtime = MEMORY[row["runtime"]]
    return needed(runtime, shape_of(row), row["tokens"], CPU, row["cache_type"])


def name_of(row: dict[str, Any]) -> str:
    """The name of a row among the tests."""
    return f"{row['runtime']}-{row['shape']}-{row['tokens']}-{row['cache_type']}"


def test_ten_shapes_were_measured_in_three_runtimes() -> None:
    by_runtime: dict[str, set[str]] = {}
    for row in ROWS:
        by_runtime.setdefault(row["runtime"], set()).add(row["shape"])
    assert by_runtime.keys() == {"transformers", "llama-cpp", "vllm"}
    assert {name: len(shapes) for name, shapes in by_runtime.items()} == {
        "transformers": 10,
        "llama-cpp": 10,
        "vllm": 10,
    }
    assert {row["runtime"] for row in ROWS} == {
        name for name, runtime in MEMORY.items() if runtime.measured
    }


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_prediction_is_within_five_percent(row: dict[str, Any]) -> None:
    need = predict(row)
    measured = row["measured"]
    assert need.total == pytest.approx(sum(measured.values()), rel=ERROR)
    # the cache alone: MiB with two decimals in the log of llama.cpp, and a token more in torch
    assert need.cache == pytest.approx(measured["cache"], rel=0.01)


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_weights_are_those_of_the_files(row: dict[str, Any]) -> None:
    assert row["predicted"]["weights"] == pytest.approx(row["measured"]["weights"], rel=0.01)


def test_another_model_is_not_within_five_percent() -> None:
    """The negative control: with the cache of another shape, most rows are off."""
    off = 0
    rows = [row for row in ROWS if row["runtime"] == "llama-cpp" and row["cache_type"] == "f16"]
    for row in rows:
        other = "llama-mha" if row["shape"] != "llama-mha" else "qwen2"
        need = predict(row | {"shape": other})
        off += abs(need.total / sum(row["measured"].values()) - 1) > ERROR
    assert off >= len(rows) - 2
