"""A small checkpoint, made without torch."""

import copy
import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import plain_llama
from tests.support.models import COMMON, FAMILIES, TINY, whole

SMALL = {"hidden_size": 32, "intermediate_size": 16, "head_dim": 16, "vocab_size": 8}


def small_config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config as publishers write it, with one layer of few numbers."""
    settings = {
        **COMMON,
        **FAMILIES[model_type],
        **(SMALL if model_type == "llama" else {}),
        **changes,
    }
    settings = {key: copy.deepcopy(value) for key, value in settings.items() if value is not None}
    settings = {"rope_theta": 10000.0, **settings}
    return {
        "model_type": model_type,
        **(whole(model_type, settings) if TINY[model_type].inner else settings),
    }


@cache
def small_header() -> dict[str, Any]:
    """The entries of the safetensors file of `small_config`, float32."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in plain_llama.weights(
        {**plain_llama.CONFIG, **COMMON, **SMALL}, np.random.default_rng(0)
    ).items():
        entries[name] = {
            "dtype": "F32",
            "shape": [*tensor.shape],
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    return entries


def data_bytes(entries: dict[str, Any]) -> int:
    return max(
        entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"
    )


def safetensors(header: bytes, data: int) -> bytes:
    """The bytes of a file. header: its JSON. data: how many bytes follow."""
    return struct.pack("<Q", len(header)) + header + b"\x01\x3c" * (data // 2) + b"\0" * (data % 2)


def write_checkpoint(folder: Path) -> Path:
    """A checkpoint of one safetensors file with a generation config and a tokenizer config."""
    folder.mkdir(parents=True)
    entries = small_header()
    (folder / "config.json").write_text(json.dumps(small_config()))
    (folder / "model.safetensors").write_bytes(
        safetensors(json.dumps(entries).encode(), data_bytes(entries))
    )
    (folder / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2}')
    (folder / "tokenizer_config.json").write_text(
        '{"model_max_length": 64, "tokenizer_class": "LlamaTokenizer"}'
    )
    return folder
