"""What a GGUF model uses of RoPE, key by key: a feature is there where a key says something, and only there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ropeconv.encode.gguf.gguf_features import gguf_features
from ropeconv.encode.gguf.gguf_model import GgufModel
from ropeconv.formats.gguf import Header, Value, f32, string, u32
from ropeconv.formats.gguf.values import i32_array

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
BASE: dict[str, Any] = {
    "context_length": 64, "embedding_length": 16, "block_count": 2, "attention.head_count": 2,
    "rope.freq_base": 12345.0,
}  # fmt: skip
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
FLAT = 1 / (1 + 0.1 * math.log(4))


def value(given: Any) -> Value:
    if isinstance(given, str):
        return string(given)
    if isinstance(given, list):
        return i32_array(given)
    return f32(given) if isinstance(given, float) else u32(given)


def features(arch: str = "llama", vectors: dict[str, list[float]] | None = None, **keys: Any) -> set[str]:
    """The features of a header. keys: without the architecture, or whole names; None takes one away."""
    named = {**BASE, **{key.replace("__", "."): one for key, one in keys.items()}}
    whole = {
        key if key.startswith("ropeconv.") else f"{arch}.{key}": value(one)
        for key, one in named.items()
        if one is not None
    }
    header = Header(3, {"general.architecture": string(arch), **whole}, {}, 32, 0, 0)
    found = {name: np.array(vector) for name, vector in (vectors or {}).items()}
    return set(gguf_features(GgufModel(header, {}, found, lambda name: iter(()))))


def more(arch: str = "llama", vectors: dict[str, list[float]] | None = None, **keys: Any) -> set[str]:
    """The features but the base, which every model uses."""
    found = features(arch, vectors, **keys)
    assert "theta" in found
    return found - {"theta"}


def test_a_plain_model_uses_its_base_alone() -> None:
    assert features() == {"theta"}


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (LINEAR, {"linear"}), ({"rope.scaling.factor": 4.0}, {"linear"}),
        ({**LINEAR, "rope.scaling.factor": 1.0}, set()),
        ({**LINEAR, "rope.scaling.factor": 0.0}, set()), ({"rope.scaling.type": "linear"}, set()),
        ({**LINEAR, "rope.scaling.type": "none"}, set()), ({**LINEAR, "rope.scaling.type": "longrope"}, set()),
        (YARN, {"yarn", "yarn_attention_factor"}), ({**YARN, "rope.scaling.factor": 1.0}, set()),
    ],
)  # fmt: skip
def test_a_scaling_counts_where_its_factor_is_not_one(keys: dict[str, Any], found: set[str]) -> None:
    assert more(**keys) == found


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, set()), ({"rope.scaling.attn_factor": 1.0}, set()), ({"rope.scaling.attn_factor": 1.0 + 5e-7}, set()),
        ({"rope.scaling.attn_factor": 1.0 - 1e-5}, {"attn_factor"}),
        ({"rope.scaling.attn_factor": 1.0 + 1e-5}, {"attn_factor"}),
        ({"rope.scaling.attn_factor": 2.0}, {"attn_factor"}),
        ({**LINEAR, "rope.scaling.attn_factor": 1.5}, {"linear", "attn_factor"}),
        ({**YARN, "rope.scaling.attn_factor": 1.0}, {"yarn", "yarn_attention_factor"}),
        ({**YARN, "rope.scaling.attn_factor": 1.5}, {"yarn", "attn_factor"}),
        ({**YARN, "rope.scaling.attn_factor": FLAT}, {"yarn", "attention_factor_1"}),
        ({**YARN, "rope.scaling.attn_factor": FLAT * 1.00001}, {"yarn", "attn_factor"}),
        ({**YARN, "rope.scaling.attn_factor": FLAT * 0.99999}, {"yarn", "attn_factor"}),
    ],
)  # fmt: skip
def test_attention_factors(keys: dict[str, Any], found: set[str]) -> None:
    assert more(**keys) == found


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_a_stock_base_counts_where_nothing_is_scaled(theta: float) -> None:
    assert more(**{"rope.freq_base": theta}) == {"stock_theta"}
    assert more(**{"rope.freq_base": theta, **LINEAR}) == {"linear"}
    assert more(**{"rope.freq_base": theta, **YARN}) == {"yarn", "yarn_attention_factor"}
    assert more(**{"rope.freq_base": theta + 1}) == set()
    assert more(**{"rope.freq_base": None}) == {"stock_theta"}  # 10000 where the key is absent


def test_long_contexts_without_any_key_of_a_scaling() -> None:
    long = {"context_length": 131072}
    assert more(**long) == {"no_scaling_keys"}
    assert more(context_length=131071) == set()
    assert more(**long, **{"rope.scaling.type": "none"}) == set()
    assert more(**long, **{"rope.scaling.factor": 1.0}) == set()
    assert more(**long, **LINEAR) == {"linear"}


@pytest.mark.parametrize("layers", [34, 48, 62])
def test_gemma_3_of_the_sizes_for_which_readers_assume_a_factor(layers: int) -> None:
    sized = {"block_count": layers, "attention.sliding_window": 32, "rope.freq_base_swa": 10000.0}
    eight = {**LINEAR, "rope.scaling.factor": 8.0}
    assert more("gemma3", **sized) == {"gemma3_not_8"}
    assert more("gemma3", **sized, **eight) == {"linear"}
    assert more("gemma3", **sized, **LINEAR) == {"linear", "gemma3_not_8"}
    assert more("gemma3", **sized, **{**eight, "rope.scaling.type": "none"}) == {"gemma3_not_8"}
    assert more("gemma3", **{**sized, "block_count": layers - 1}) == set()
    assert more("llama", block_count=layers) == set()


def test_a_base_of_window_layers_counts_where_it_is_another_than_without_the_key() -> None:
    window = {"attention.sliding_window": 32}
    assert more("gemma3", **window) == set()
    assert more("gemma3", **window, **{"rope.freq_base_swa": 10000.0}) == set()
    assert more("gemma3", **window, **{"rope.freq_base_swa": 20000.0}) == {"window_theta"}
    assert more("llama", **window, **{"rope.freq_base_swa": 20000.0}) == set()


def test_keys_that_only_some_architectures_read() -> None:
    for fast, slow, found in ((32.0, 1.0, set()), (16.0, 1.0, {"betas"}), (32.0, 2.0, {"betas"})):
        betas = {"rope.scaling.yarn_beta_fast": fast, "rope.scaling.yarn_beta_slow": slow}
        assert more("mistral3", **betas) == found
    assert more("llama", **{"rope.scaling.yarn_beta_fast": 16.0}) == set()
    assert more("deepseek2", **MLA, **{"rope.scaling.yarn_log_multiplier": 0.1}) == {"log_multiplier"}
    assert more("deepseek2", **MLA, **{"rope.scaling.yarn_log_multiplier": 0.0}) == set()
    assert more("llama", **{"rope.scaling.yarn_log_multiplier": 0.1}) == set()
    assert more("mistral3", **{"attention.temperature_scale": 0.1}) == {"temperature_scale"}
    assert more("mistral3", **{"attention.temperature_scale": 0.0}) == set()
    assert more("llama", **{"attention.temperature_scale": 0.1}) == set()


MLA = {"attention.head_count_kv": 1, "rope.dimension_count": 8}


@pytest.mark.parametrize(
    ("scale", "found"), [(0.5, True), (1.0, False), (1 + 5e-7, False), (1.5, True), (1 - 1e-5, True)]
)
def test_norms_of_window_layers(scale: float, found: bool) -> None:
    assert ("window_norms" in more(**{"ropeconv.window_norm_scale": scale})) is found


def test_rope_tensors_count_where_they_divide() -> None:
    ones, twos = [1.0] * 4, [1.0, 1.0, 1.0, 2.0]
    assert more(vectors={FREQS: ones}) == set()
    assert more(vectors={FREQS: twos}) == {"rope_freqs"}
    assert more("phi3", vectors={LONG: ones, SHORT: ones}) == set()
    assert more("phi3", vectors={LONG: twos, SHORT: ones}) == {"factors"}
    assert more("phi3", vectors={LONG: ones, SHORT: twos}) == {"factors"}


def test_rope_tensors_of_heads_that_are_not_the_width_over_their_number() -> None:
    assert more(vectors={FREQS: [1.0] * 4}) == set()  # 2 heads of 8 in a width of 16
    assert more(vectors={FREQS: [1.0] * 4}, embedding_length=24, attention__key_length=8) == {"rope_freqs_shape"}
    assert more("qwen2", vectors={FREQS: [1.0] * 2}, rope__dimension_count=4) == {"rope_freqs_shape"}
    assert more(vectors={FREQS: [1.0] * 4}, attention__head_count=[2, 2]) == {"rope_freqs_shape"}
    assert more(embedding_length=24, attention__key_length=8) == set()
