"""What a GGUF model uses of RoPE, key by key: a feature is there where a key says something, and
only there.
"""

import math
from typing import Any

import numpy as np
import pytest

from ropeconv.convert.gguf_encoding import GgufModel, gguf_features
from ropeconv.formats.gguf.header import INT32, GgufHeader, GgufValue, array, f32, string, u32

from .edits import FREQS, LONG, SHORT

BASE: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": 16,
    "block_count": 2,
    "attention.head_count": 2,
    "rope.freq_base": 12345.0,
}
KIND, FACTOR, THETA = "rope.scaling.type", "rope.scaling.factor", "rope.freq_base"
SCALED, OWN = "rope.scaling.attn_factor", "rope.freq_base_swa"
YARN = {KIND: "yarn", FACTOR: 4.0, "rope.scaling.original_context_length": 64}
LINEAR = {KIND: "linear", FACTOR: 4.0}
LONG_CONTEXT = {"context_length": 131072}
WINDOW = {"attention.sliding_window": 32}
FLAT = 1 / (1 + 0.1 * math.log(4))
ONES = [1.0] * 4
TWOS = [1.0, 1.0, 1.0, 2.0]


def value(given: Any) -> GgufValue:
    if isinstance(given, str):
        return string(given)
    if isinstance(given, list):
        return array(INT32, given)
    return f32(given) if isinstance(given, float) else u32(given)


def features(arch: str, keys: dict[str, Any], vectors: dict[str, list[float]]) -> set[str]:
    """The features of a header. keys: without the architecture, or whole names; None takes one
    away.
    """
    whole = {
        key if key.startswith("ropeconv.") else f"{arch}.{key}": value(entry)
        for key, entry in (BASE | keys).items()
        if entry is not None
    }
    header = GgufHeader(3, {"general.architecture": string(arch), **whole}, {}, 32, 0, 0)
    arrays = {name: np.array(vector) for name, vector in vectors.items()}
    return set(gguf_features(GgufModel(header, {}, arrays)))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, set()),
        # a scaling counts where its factor is not 1
        (LINEAR, {"linear"}),
        ({FACTOR: 4.0}, {"linear"}),
        ({**LINEAR, FACTOR: 1.0}, set()),
        ({KIND: "none", FACTOR: 4.0}, set()),
        # an attention factor counts where it is not 1, and yarn has one of its own
        ({SCALED: 1.0}, set()),
        ({SCALED: 1.0 + 5e-7}, set()),
        ({SCALED: 1.0 - 1e-5}, {"attn_factor"}),
        ({SCALED: 1.0 + 1e-5}, {"attn_factor"}),
        ({**LINEAR, SCALED: 1.5}, {"linear", "attn_factor"}),
        ({**YARN, SCALED: 1.0}, {"yarn", "yarn_attention_factor"}),
        ({**YARN, SCALED: 1.5}, {"yarn", "attn_factor"}),
        ({**YARN, SCALED: FLAT}, {"yarn", "attention_factor_1"}),
        # a long context without any key of a scaling
        (LONG_CONTEXT, {"no_scaling_keys"}),
        ({"context_length": 131071}, set()),
        ({**LONG_CONTEXT, **LINEAR}, {"linear"}),
        # norms of window layers that take a factor back
        *(({"ropeconv.window_norm_scale": scale}, set()) for scale in (1.0, 1 + 5e-7)),
        *(
            ({"ropeconv.window_norm_scale": scale}, {"window_norms"})
            for scale in (0.5, 1.5, 1 - 1e-5)
        ),
    ],
)
def test_what_a_llama_uses_beside_its_base(keys: dict[str, Any], expected: set[str]) -> None:
    assert features("llama", keys, {}) == {"theta"} | expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({THETA: 10000.0}, {"stock_theta", "theta"}),
        ({THETA: 500000.0}, {"stock_theta", "theta"}),
        ({THETA: 10001.0}, {"theta"}),
        ({THETA: 10000.0, **LINEAR}, {"linear", "theta"}),
    ],
)
def test_a_stock_base_counts_where_nothing_is_scaled(
    keys: dict[str, Any], expected: set[str]
) -> None:
    assert features("llama", keys, {}) == expected


MLA = {"attention.head_count_kv": 1, "rope.dimension_count": 8}
FAST = "rope.scaling.yarn_beta_fast"
SLOW = "rope.scaling.yarn_beta_slow"
LOG = "rope.scaling.yarn_log_multiplier"
SLOPE = "attention.temperature_scale"


@pytest.mark.parametrize(
    ("arch", "keys", "expected"),
    [
        ("gemma3", WINDOW, set()),
        ("gemma3", {**WINDOW, OWN: 10000.0}, set()),
        ("gemma3", {**WINDOW, OWN: 20000.0}, {"window_theta"}),
        ("llama", {**WINDOW, OWN: 20000.0}, set()),
        ("mistral3", {FAST: 32.0, SLOW: 1.0}, set()),
        ("mistral3", {FAST: 16.0, SLOW: 1.0}, {"betas"}),
        ("mistral3", {FAST: 32.0, SLOW: 2.0}, {"betas"}),
        ("llama", {FAST: 16.0}, set()),
        ("deepseek2", {**MLA, LOG: 0.1}, {"log_multiplier"}),
        ("deepseek2", {**MLA, LOG: 0.0}, set()),
        ("llama", {LOG: 0.1}, set()),
        ("mistral3", {SLOPE: 0.1}, {"temperature_scale"}),
        ("mistral3", {SLOPE: 0.0}, set()),
        ("llama", {SLOPE: 0.1}, set()),
    ],
)
def test_keys_that_only_some_architectures_read(
    arch: str, keys: dict[str, Any], expected: set[str]
) -> None:
    assert features(arch, keys, {}) == {"theta"} | expected


@pytest.mark.parametrize(
    ("arch", "vectors", "keys", "expected"),
    [
        ("llama", {FREQS: ONES}, {}, set()),
        ("llama", {FREQS: TWOS}, {}, {"rope_freqs"}),
        ("phi3", {LONG: ONES, SHORT: ONES}, {}, set()),
        ("phi3", {LONG: TWOS, SHORT: ONES}, {}, {"factors"}),
        ("phi3", {LONG: ONES, SHORT: TWOS}, {}, {"factors"}),
        # heads that are not the width over their number
        (
            "llama",
            {FREQS: ONES},
            {"embedding_length": 24, "attention.key_length": 8},
            {"rope_freqs_shape"},
        ),
        ("llama", {}, {"embedding_length": 24, "attention.key_length": 8}, set()),
        ("qwen2", {FREQS: ONES[:2]}, {"rope.dimension_count": 4}, {"rope_freqs_shape"}),
        ("llama", {FREQS: ONES}, {"attention.head_count": [2, 2]}, {"rope_freqs_shape"}),
    ],
)
def test_rope_tensors_count_where_they_divide(
    arch: str, vectors: dict[str, list[float]], keys: dict[str, Any], expected: set[str]
) -> None:
    assert features(arch, keys, vectors) == {"theta"} | expected
