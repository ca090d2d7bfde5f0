"""The key-value cache of GGUF files, beside the buffers that llama.cpp allocates and logs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from ..support.baking import AS_IS
from ..support.extent import sample
from ..support.gguf_files import HEAD_DIM, LAYERS, write
from ..support.llamacpp import bake, checkpoint
from .test_kv_cache import cache_of

CELLS = 1024
TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
PROGRAM = """
import json, sys
from llama_cpp import Llama
path, cells, kind = json.loads(sys.argv[1])
Llama(path, n_ctx=cells, n_batch=256, n_ubatch=256, type_k=kind, type_v=kind, flash_attn=True, swa_full=False)
"""


def logged(path: Path, kind: str) -> list[float]:
    """MiB of the buffers with keys and values that llama.cpp allocates: one, or one for window layers as well."""
    asked = json.dumps([str(path), CELLS, TYPES[kind]])
    done = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, check=False)
    found = re.findall(r"KV buffer size = +([\d.]+) MiB", done.stderr)
    assert found, done.stderr[-2000:]
    return [float(size) for size in found]


@pytest.mark.parametrize(
    ("model_type", "kind"), sample(list(product(("llama", "qwen3", "phi3", "gpt_neox"), TYPES)), 2)
)
def test_what_llamacpp_allocates(model_type: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    bake(checkpoint(model_type, tmp_path / "model"), AS_IS, path)
    assert [cache_of(path).bytes(CELLS)[kind] / 2**20] == pytest.approx(logged(path, kind), abs=0.006)


def test_multi_head_latent_attention_keeps_no_values(tmp_path: Path) -> None:
    """llama-kv-cache.cpp: has_v = !is_mla. DeepSeek's file has one head of 512 + 64 keys."""
    keys = {
        "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
        "attention.value_length_mla": 128, "attention.kv_lora_rank": 512,
    }  # fmt: skip
    path = write(tmp_path / "model.gguf", "deepseek2", keys)
    assert cache_of(path).bytes(1000)["f16"] == 1000 * LAYERS * 576 * 2
    old = write(tmp_path / "old.gguf", "deepseek2", {"attention.key_length": 192, "attention.value_length": 128})
    assert cache_of(old).bytes(1000)["f16"] == 1000 * LAYERS * (192 + 128) * 2


def test_window_layers_are_as_wide_as_the_others_unless_keys_of_their_own_say_more(tmp_path: Path) -> None:
    for index, (own, keys, values) in enumerate(
        [({}, 64, 32), ({"attention.key_length_swa": 128, "attention.value_length_swa": 16}, 128, 16)]
    ):
        widths = {"attention.key_length": 64, "attention.value_length": 32, "attention.sliding_window": 8}
        path = write(tmp_path / f"{index}.gguf", "gemma3", widths | own)
        assert cache_of(path).bytes(8)["f16"] == 8 * LAYERS * (keys + values) * 2


def test_quantised_caches_by_hand(tmp_path: Path) -> None:
    """q8_0 has 34 bytes per 32 numbers, q4_0 18."""
    cache = cache_of(write(tmp_path / "model.gguf"))
    numbers = 1000 * LAYERS * 2 * HEAD_DIM
    assert cache.bytes(1000) == {"f16": 2 * numbers, "q8_0": numbers * 34 // 32, "q4_0": numbers * 18 // 32}


def test_blocks_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    keys = {"attention.key_length": 80, "attention.value_length": 80, "rope.dimension_count": 80}
    assert list(cache_of(write(tmp_path / "model.gguf", "llama", keys)).bytes(64)) == ["f16"]
