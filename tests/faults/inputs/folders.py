"""Seeds: folders with small checkpoints, made without torch, and releases as Meta distributes them."""

from __future__ import annotations

import copy
import io
import json
import math
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.faults.scenes import llama_shapes
from tests.sources.test_meta import VOCABULARY, sentencepiece_model, weights
from tests.support.models import COMMON, FAMILIES, TINY, whole

SMALL = {"hidden_size": 32, "intermediate_size": 16, "head_dim": 16, "vocab_size": 8}
PARAMS: dict[str, Any] = {
    "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "multiple_of": 16, "norm_eps": 1e-5, "vocab_size": -1,
    "ffn_dim_multiplier": 1.0, "rope_theta": 10000.0, "use_scaled_rope": False,
}  # fmt: skip


def small_config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config as publishers write it, with one layer of few numbers."""
    settings = {**COMMON, **FAMILIES[model_type], **(SMALL if model_type == "llama" else {}), **changes}
    settings = {key: copy.deepcopy(value) for key, value in settings.items() if value is not None}
    settings = {"rope_theta": 10000.0, **settings}
    return {"model_type": model_type, **(whole(model_type, settings) if TINY[model_type].halves else settings)}


@cache
def small_header() -> dict[str, Any]:
    """The entries of the safetensors file of `small_config`, float32."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in llama_shapes(32, 16, 8).items():
        size = 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return entries


def data_bytes(entries: dict[str, Any]) -> int:
    """Bytes of data behind a header."""
    return max(entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__")


def safetensors(header: bytes, data: int) -> bytes:
    """The bytes of a file. header: its JSON. data: how many bytes follow."""
    return struct.pack("<Q", len(header)) + header + b"\x01\x3c" * (data // 2) + b"\0" * (data % 2)


def write_checkpoint(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """A checkpoint of one safetensors file with a generation config and a tokenizer config."""
    folder.mkdir(parents=True)
    entries = small_header()
    (folder / "config.json").write_text(json.dumps(small_config() if config is None else config))
    (folder / "model.safetensors").write_bytes(safetensors(json.dumps(entries).encode(), data_bytes(entries)))
    (folder / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2}')
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 64, "tokenizer_class": "LlamaTokenizer"}')
    return folder


@cache
def sentencepiece() -> bytes:
    """A small tokenizer.model."""
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece_model(Path(folder))
        return Path(folder, "tokenizer.model").read_bytes()


@cache
def pth() -> bytes:
    """consolidated.00.pth of a release by Meta, of one layer."""
    import torch

    file = io.BytesIO()
    torch.save(weights(PARAMS, VOCABULARY, torch.bfloat16), file)
    return file.getvalue()


def write_release(folder: Path) -> Path:
    """A folder as Meta distributes it."""
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(PARAMS))
    (folder / "consolidated.00.pth").write_bytes(pth())
    (folder / "tokenizer.model").write_bytes(sentencepiece())
    return folder
