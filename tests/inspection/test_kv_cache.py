"""The key-value cache: bytes that transformers and llama.cpp allocate, and published sizes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, DynamicCache

from ropeconv.inspection.kv_cache import KvCache
from ropeconv.models.config import CachedLayers
from ropeconv.models.family import Cache
from ropeconv.models.registry import by_model_type

from ..conftest import CONFIGS
from ..support.baking import AS_IS, inspected, make_plan, recipe_of
from ..support.extent import sample
from ..support.gguf_files import HEAD_DIM, LAYERS, write
from ..support.llamacpp import bake, checkpoint
from ..support.models import ENCODERS, FAMILIES, from_config, make

TOKENS = 100


def cache_of(source: Path) -> KvCache:
    cache = inspected(source).kv_cache
    assert cache is not None
    return cache


def allocated(folder: Path) -> int:
    """Bytes of all keys and values that transformers holds after TOKENS tokens, in float32."""
    config = AutoConfig.from_pretrained(folder)
    model = from_config(config).to(torch.float32).eval()
    own_cache = model.config.model_type == "minimax"  # it takes no other
    cache = None if own_cache else DynamicCache(config=model.config)
    with torch.no_grad():
        out = model(
            input_ids=torch.randint(4, 300, (1, TOKENS)), past_key_values=cache, use_cache=True
        )
    cache = out.past_key_values
    tensors = [
        tensor
        for layer in cache.layers
        for name in ("keys", "values", "indexer_keys")
        if (tensor := getattr(layer, name, None)) is not None
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def expected(cache: KvCache) -> int:
    """Bytes by hand: transformers keeps one token less than the window, since the query's own token
    is the last.
    """
    return sum(
        4 * layers.count * (layers.keys + layers.values) * kept(layers) for layers in cache.layers
    )


def kept(layers: CachedLayers) -> int:
    return min(TOKENS, TOKENS if layers.window is None else layers.window - 1)


REPEATS = {"falcon"}
"""Families of which transformers keeps the keys and values of a head once for every query head that
shares it.
"""
DECODERS = [
    name
    for name in FAMILIES
    if name not in ENCODERS | REPEATS and by_model_type()[name].cache.per_token
]
OWN = [
    name for name in DECODERS if by_model_type()[name].cache != Cache() or by_model_type()[name].mla
]
"""Families with rules of their own about what is kept."""


@pytest.mark.parametrize(
    "model_type", [*sample(OWN, 4), *sample([name for name in DECODERS if name not in OWN], 4)]
)
def test_what_transformers_allocates(model_type: str, tiny: Callable[[str], Path]) -> None:
    folder = tiny(model_type)
    assert expected(cache_of(folder)) == allocated(folder) > 0


WINDOWED: list[tuple[str, dict[str, Any]]] = [
    ("falcon", {"new_decoder_architecture": False, "multi_query": True}),
    ("falcon", {"new_decoder_architecture": False, "multi_query": False}),
    ("mistral", {"sliding_window": 32}),
    ("phi3", {"sliding_window": 32}),
    ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1}),
    ("qwen2", {"sliding_window": 32, "use_sliding_window": False}),
    ("qwen3_moe", {"sliding_window": 32, "use_sliding_window": True}),
    ("gpt_oss", {"sliding_window": 32}),
    ("llama4_text", {"attention_chunk_size": 32}),
    ("gemma2", {"sliding_window": 32, "num_key_value_heads": 2}),
]


@pytest.mark.parametrize(("model_type", "changes"), sample(WINDOWED, 2))
def test_windows_and_single_heads(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = make(model_type, tmp_path / "model", **changes)
    assert expected(cache_of(folder)) == allocated(folder)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        (
            "meta-llama--Meta-Llama-3.1-8B",
            131072,
        ),  # 16 GiB at 128k: https://huggingface.co/blog/llama31
        ("deepseek-ai--DeepSeek-V3", 70272),  # table 1 of https://arxiv.org/abs/2505.09343
        ("meta-llama--Llama-2-7b-hf", 2 * 32 * 4096 * 2),
        ("meta-llama--Llama-2-70b-hf", 2 * 80 * 8 * 128 * 2),
        ("tiiuae--falcon-40b", 2 * 60 * 8 * 64 * 2),
    ],
)
def test_published_sizes(name: str, per_token: int) -> None:
    cache = cache_of(CONFIGS / f"{name}.json")
    assert next(iter(cache.bytes(131072).values())) == 131072 * per_token
    assert cache.bytes(131072)["fp8"] == 131072 * per_token // 2


def test_a_window_ends_the_growth() -> None:
    """Gemma 3 27B: 10 layers see everything, 52 see 1,024 tokens; 16 heads of 128."""
    cache = cache_of(CONFIGS / "google--gemma-3-27b-it.json")
    assert cache.bytes(131072)["bfloat16"] == 2 * 2 * 16 * 128 * (10 * 131072 + 52 * 1024)
    assert cache.bytes(1024)["bfloat16"] == 2 * 2 * 16 * 128 * 62 * 1024
    assert re.search("52 layers .* 1,024 tokens", cache.sentence(131072))
    assert "window" not in cache.sentence(1024)


def test_the_plan_has_both_lengths() -> None:
    plan = make_plan(CONFIGS / "meta-llama--Meta-Llama-3-8B.json", recipe_of("yarn", 4.0))
    data = plan.to_dict()["kv_cache"]
    assert (data["tokens"], data["bytes"]["bfloat16"]) == (32768, 4 << 30)
    assert data["source"] == {"tokens": 8192, "bytes": {"bfloat16": 1 << 30, "fp8": 1 << 29}}
    assert data["layers"] == [{"count": 32, "keys": 1024, "values": 1024, "window": None}]


# GGUF files, beside the buffers that llama.cpp allocates and logs


CELLS = 1024
TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
PROGRAM = """
import json, sys
from llama_cpp import Llama
path, cells, kind = json.loads(sys.argv[1])
Llama(path, n_ctx=cells, n_batch=256, n_ubatch=256, type_k=kind, type_v=kind, flash_attn=True, swa_full=False)
"""


def logged(path: Path, kind: str) -> list[float]:
    """MiB of the buffers with keys and values that llama.cpp allocates: one, or one for window
    layers as well.
    """
    arguments = json.dumps([str(path), CELLS, TYPES[kind]])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, arguments], capture_output=True, text=True, check=False
    )
    sizes = re.findall(r"KV buffer size = +([\d.]+) MiB", done.stderr)
    assert sizes, done.stderr[-2000:]
    return [float(size) for size in sizes]


@pytest.mark.parametrize(
    ("model_type", "kind"), sample(list(product(("llama", "qwen3", "phi3", "gpt_neox"), TYPES)), 2)
)
def test_what_llamacpp_allocates(model_type: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    bake(checkpoint(model_type, tmp_path / "model"), AS_IS, path)
    assert [cache_of(path).bytes(CELLS)[kind] / 2**20] == pytest.approx(
        logged(path, kind), abs=0.006
    )


@pytest.mark.parametrize(
    ("arch", "states"), [("granitehybrid", 2), ("falcon-h1", 0), ("deci", 0), ("qwen3next", 3)]
)
def test_layers_without_heads_keep_a_state_where_the_architecture_has_one(
    arch: str, states: int, tmp_path: Path
) -> None:
    """Granite 4 has Mamba there, and Nemotron NAS nothing. Falcon-H1 has both in every layer."""
    keys: dict[str, Any] = {"block_count": 4}
    if arch in {"granitehybrid", "deci"}:
        keys["attention.head_count_kv"] = [0, 2, 0, 2]
    cache = cache_of(write(tmp_path / "model.gguf", arch, keys))
    assert cache.states == states
    assert sum(group.count for group in cache.layers) == {"falcon-h1": 4, "qwen3next": 1}.get(
        arch, 2
    )


def test_multi_head_latent_attention_keeps_no_values(tmp_path: Path) -> None:
    """llama-kv-cache.cpp: has_v = !is_mla. DeepSeek's file has one head of 512 + 64 keys."""
    keys = {
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512,
    }
    path = write(tmp_path / "model.gguf", "deepseek2", keys)
    assert cache_of(path).bytes(1000)["f16"] == 1000 * LAYERS * 576 * 2
    old = write(
        tmp_path / "old.gguf",
        "deepseek2",
        {"attention.key_length": 192, "attention.value_length": 128},
    )
    assert cache_of(old).bytes(1000)["f16"] == 1000 * LAYERS * (192 + 128) * 2


def test_window_layers_are_as_wide_as_the_others_unless_keys_of_their_own_say_more(
    tmp_path: Path,
) -> None:
    for index, (window_widths, keys, values) in enumerate(
        [
            ({}, 64, 32),
            ({"attention.key_length_swa": 128, "attention.value_length_swa": 16}, 128, 16),
        ]
    ):
        widths = {
            "attention.key_length": 64,
            "attention.value_length": 32,
            "attention.sliding_window": 8,
        }
        path = write(tmp_path / f"{index}.gguf", "gemma3", widths | window_widths)
        assert cache_of(path).bytes(8)["f16"] == 8 * LAYERS * (keys + values) * 2


def test_quantised_caches_by_hand(tmp_path: Path) -> None:
    """q8_0 has 34 bytes per 32 numbers, q4_0 18."""
    cache = cache_of(write(tmp_path / "model.gguf"))
    numbers = 1000 * LAYERS * 2 * HEAD_DIM
    assert cache.bytes(1000) == {
        "f16": 2 * numbers,
        "q8_0": numbers * 34 // 32,
        "q4_0": numbers * 18 // 32,
    }


def test_blocks_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    keys = {"attention.key_length": 80, "attention.value_length": 80, "rope.dimension_count": 80}
    assert list(cache_of(write(tmp_path / "model.gguf", "llama", keys)).bytes(64)) == ["f16"]
