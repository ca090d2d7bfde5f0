"""Keys of config.json with another type, or out of range, are refused by their names before
anything is computed.
"""

import math
import re
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.models.config import detect
from ropeconv.models.registry import families
from ropeconv.models.schema import ROPE, WORDS, Flag, Flags, Name, Names, Object, key_types
from ropeconv.runtimes.read_config import UnknownRopeType, read_spec

from ..faults.inputs.folders import small_config
from ..support.families import some

TEXTS = (Name, Names, Object, Flag, Flags)
"""Types of values that are not numbers with a bound."""
LISTS = ("short_factor", "long_factor", "mrope_section")


def read(config: dict[str, Any]) -> None:
    read_spec(config, detect(config))


def sentence(config: dict[str, Any]) -> str:
    """The refusal of a config, or empty. Any other error is raised."""
    try:
        read(config)
    except (BadSource, UnknownRopeType) as problem:
        return str(problem)
    return ""


def test_every_type_has_words_for_its_message() -> None:
    for family in families():
        for key, kind in key_types(family).items():
            assert kind in WORDS, (family.name, key)


@pytest.mark.parametrize("model_type", some())
def test_the_configs_of_all_families_pass(model_type: str) -> None:
    read(small_config(model_type))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "num_hidden_layers",
            300_000_000,
            "num_hidden_layers = 300000000; write a positive whole number there",
        ),
        ("num_hidden_layers", "2", "write the number 2 without quotes"),
        ("num_hidden_layers", 2.5, "write a positive whole number there"),
        (
            "head_dim",
            400_000,
            "head_dim = 400000; write a positive whole number there, at most 2,048",
        ),
        (
            "max_position_embeddings",
            10**400,
            "write a positive whole number there, at most 2,147,483,647",
        ),
        (
            "max_position_embeddings",
            float("nan"),
            "max_position_embeddings = nan; write a positive whole number",
        ),
        ("hidden_size", [1], "hidden_size = \\[1\\]; write a positive whole number there"),
        ("rope_theta", float("inf"), "rope_theta = inf; write a number above 1 there"),
        ("rope_theta", 1, "rope_theta = 1; write a number above 1 there"),
        ("layer_types", ["full_attention"] * 20_000, "write a list of at most 10,000 names"),
        ("layer_types", [[]], "write a list of at most 10,000 names"),
        ("rope_scaling", 4.0, "write an object there, or null"),
        (
            "rope_scaling",
            {"rope_type": []},
            "rope_type = \\[\\] in its RoPE settings; write a name",
        ),
        (
            "rope_scaling",
            {"rope_type": "yarn", "factor": 10**400},
            "in its RoPE settings; write a positive number",
        ),
        (
            "rope_scaling",
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 0},
            "beta_fast = 0 in its RoPE settings",
        ),
        (
            "rope_scaling",
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 5e-324},
            "write a number from 1e-100 to 1e6",
        ),
        ("head_dim", 3, "rotates 3 of 3 dimensions, which rotate in pairs"),
        (
            "rope_scaling",
            {"rope_type": "longrope", "long_factor": [1.0, None]},
            "long_factor = \\[1.0, None\\] in its",
        ),
        ("quantization_config", 4, "quantization_config"),
        ("quantization_config", {"quant_method": 4}, "quant_method"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: object, words: str) -> None:
    with pytest.raises(BadSource, match=words):
        read(small_config() | {key: value})


TOO_LARGE = 10**60
BOUNDED = [
    key for key, kind in key_types(detect(small_config())).items() if key and kind not in TEXTS
]


@pytest.mark.parametrize("key", BOUNDED)
def test_a_number_that_is_too_large_is_told_the_bound(key: str) -> None:
    """2^40 is a positive whole number, so the sentence says what else it must be."""
    message = sentence(small_config() | {key: TOO_LARGE})
    assert key in message
    assert any(bound < TOO_LARGE for bound in bounds(message)), message


@pytest.mark.parametrize("key", [key for key, kind in ROPE.items() if kind not in TEXTS])
def test_a_number_in_the_rope_settings_is_told_the_bound(key: str) -> None:
    small = small_config()
    value = [TOO_LARGE] if key in LISTS else TOO_LARGE
    message = sentence(small | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, key: value}})
    assert key in message
    assert any(bound < TOO_LARGE for bound in bounds(message)), message


def test_a_hidden_size_of_2_to_the_40_is_too_large() -> None:
    message = sentence(small_config() | {"hidden_size": 1 << 40})
    assert "at most 2,147,483,648" in message
    assert not sentence(small_config() | {"intermediate_size": 1 << 31})


def bounds(message: str) -> list[float]:
    """The numbers in the repair of a sentence."""
    repair = message.rpartition("; write ")[2].replace(",", "")
    return [float(text) for text in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", repair)]


@pytest.mark.parametrize(
    ("model_type", "more", "refused"),
    [
        ("qwen2", {"use_sliding_window": False}, False),
        ("qwen2", {}, False),
        ("gemma2", {"layer_types": ["full_attention"] * 2}, False),
        ("mistral", {}, True),
        ("gemma2", {}, True),
        ("qwen2", {"use_sliding_window": 1, "max_window_layers": 0}, True),
    ],
)
def test_a_window_of_0_is_refused_where_a_layer_has_it(
    model_type: str, more: dict[str, Any], refused: bool
) -> None:
    config = small_config(model_type) | {"sliding_window": 0} | more
    message = sentence(config)
    assert (
        "sliding_window = 0, with which a layer sees no token; write how many tokens" in message
    ) is refused
    assert bool(message) is refused
    read(config | {"sliding_window": 8})


TEN_KEYS = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1 << 23,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 100,
    "intermediate_size": 64,
    "rope_theta": 10000.0,
}
LINEAR = {"rope_type": "linear", "factor": 1e-9}
YARN = {"rope_type": "yarn", "factor": 5e-324, "original_max_position_embeddings": 1}
ZERO = {"factor": 4.0, "mscale": 1.0, "mscale_all_dim": -10 / math.log(4)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "hidden_size = 8388608 for 1 head, which makes heads of 8,388,608 dimensions"),
        (
            {"head_dim": 64, "rope_scaling": LINEAR},
            "describes a trained context of 4,096,000,000,000 tokens",
        ),
        (
            {"head_dim": 64, "rope_scaling": YARN},
            "contradict each other \\(the method gives frequencies that are neg",
        ),
        (
            {"head_dim": 64, "rope_scaling": YARN | ZERO},
            "contradict each other \\(float division by zero\\); correct",
        ),
        ({"head_dim": 64, "per_layer_config": {"9" * 5000: {}}}, ""),
        (
            {"model_type": "gptj", "n_embd": 64, "n_head": 1, "rotary_dim": 2048},
            "rotates 2048 dimensions of heads tha",
        ),
        (
            {
                "model_type": "dbrx",
                "d_model": 64,
                "n_heads": 1,
                "attn_config": {"kv_n_heads": 10**30},
            },
            "kv_n_heads = 1",
        ),
        (
            {"model_type": "cwm", "head_dim": 64, "layer_types": ["full_attention"]},
            "has 1 layer_types and 2 layers",
        ),
        (
            {
                "model_type": "exaone4",
                "head_dim": 64,
                "sliding_window": 64,
                "sliding_window_pattern": 0,
            },
            "pattern = 0",
        ),
        (
            {"model_type": "longcat_flash", "num_layers": 10_000, "hidden_size": 64},
            "20,000 layers, and models have at",
        ),
        (
            {"model_type": "mistral3", "text_config": {**TEN_KEYS, "model_type": "mistral"}},
            "heads of 8,388,608 dimens",
        ),
    ],
)
def test_sizes_that_follow_from_others_are_bounded(changes: dict[str, Any], words: str) -> None:
    message = sentence({**TEN_KEYS, **changes})
    assert re.search(words, message) if words else not message
