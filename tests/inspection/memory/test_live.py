"""The memory that torch and llama.cpp take here, for two shapes, beside the prediction."""

from pathlib import Path

import pytest

from scripts.benchmarks.memory import (
    COMMON,
    build,
    compare,
    convert,
    measure_llamacpp,
    measure_transformers,
    predict,
)

SHAPES = ("llama-gqa", "gemma3")
TOKENS = 1536


@pytest.fixture(scope="module", params=SHAPES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shape of the record with two layers in place of six, and with them its kinds of layers."""
    name = request.param
    changes = {"num_hidden_layers": 2}
    if name == "gemma3":
        changes["layer_types"] = ["sliding_attention", "full_attention"]
    return build(name, tmp_path_factory.mktemp("memory"), changes)


def test_torch_takes_what_is_predicted(checkpoint: Path) -> None:
    pytest.importorskip("transformers")
    measured = measure_transformers(checkpoint, TOKENS)
    row = compare(measured, predict("transformers", checkpoint, TOKENS))
    assert abs(row["error"]) < 0.05
    assert row["predicted"]["cache"] == pytest.approx(measured["cache"], rel=0.01)
    # half of the prompt takes less: the numbers are not those of the weights alone
    shorter = predict("transformers", checkpoint, TOKENS // 2)
    assert abs(compare(measured, shorter)["error"]) > 0.05


def test_llamacpp_takes_what_is_predicted(checkpoint: Path) -> None:
    pytest.importorskip("llama_cpp")
    path = convert(checkpoint)
    for cache_type in ("f16", "q8_0"):
        measured = measure_llamacpp(path, 8 * TOKENS, cache_type)
        row = compare(measured, predict("llama-cpp", path, 8 * TOKENS, cache_type))
        assert abs(row["error"]) < 0.05
        # the log has MiB with two decimals
        assert row["predicted"]["cache"] == pytest.approx(measured["cache"], abs=2 * 5300)
    assert COMMON["vocab_size"] == 32000  # the logits are the largest part of the buffer
